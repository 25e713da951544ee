use std::rc::Rc;

use proptest::prelude::*;

use self::pickler::{Object, Shared, Style, pickle};
use super::{Kind, Value, Values, load};
use crate::Error;
use crate::source::Source;

#[path = "../../tests/pickler/mod.rs"]
mod pickler;

fn load_bytes(bytes: &[u8]) -> Result<(Values, Value), Error> {
    load(&mut Source::new(bytes, &mut |_| {})?)
}

/// Is `value` the object?
fn same(values: &Values, value: Value, object: &Object) -> bool {
    let all = |kind, objects: Vec<&Shared>| {
        let Value::Container(container) = value else { return false };
        let mut items = values.items(container);
        values.kind(container) == kind
            && objects
                .into_iter()
                .all(|object| items.next(values).is_some_and(|item| same(values, item, object)))
            && items.next(values).is_none()
    };
    match object {
        Object::None => value == Value::None,
        Object::Truth(truth) => value == Value::Truth(*truth),
        Object::Int(int) => values.int(value) == Some(*int),
        Object::Float(float) => values.float(value) == Some(*float),
        Object::Text(text) => values.text(value) == Some(text.as_bytes()),
        Object::Bytes(_) | Object::ByteArray(_) => value == Value::Bytes,
        Object::List(items) => all(Kind::List, items.iter().collect()),
        Object::Tuple(items) | Object::FrozenSet(items) => all(Kind::Tuple, items.iter().collect()),
        Object::Set(items) => all(Kind::Set, items.iter().collect()),
        Object::Dict(items) => {
            all(Kind::Dict, items.iter().flat_map(|(key, value)| [key, value]).collect())
        }
    }
}

/// Objects that a protocol can write, which use some of their parts in several places.
fn objects(protocol: u8) -> impl Strategy<Value = Shared> {
    let mut leaves = vec![
        Just(Object::None).boxed(),
        any::<bool>().prop_map(Object::Truth).boxed(),
        any::<i128>().prop_map(Object::Int).boxed(),
        any::<i64>().prop_map(|int| Object::Int(int.into())).boxed(),
        any::<i32>().prop_map(|int| Object::Int(int.into())).boxed(),
        (-130i128..70_000).prop_map(Object::Int).boxed(),
        (-1e300..1e300).prop_map(Object::Float).boxed(),
        ".{0,400}".prop_map(Object::Text).boxed(),
    ];
    if protocol >= 3 {
        leaves.push(proptest::collection::vec(any::<u8>(), 0..400).prop_map(Object::Bytes).boxed());
    }
    if protocol >= 5 {
        leaves.push(any::<Vec<u8>>().prop_map(Object::ByteArray).boxed());
    }
    let leaf = proptest::strategy::Union::new(leaves).prop_map(Rc::new);
    leaf.prop_recursive(5, 60, 8, move |inner| {
        let several = proptest::collection::vec(inner.clone(), 0..8);
        let pairs = proptest::collection::vec((inner.clone(), inner.clone()), 0..5);
        let mut containers = vec![
            several.clone().prop_map(Object::List).boxed(),
            several.clone().prop_map(Object::Tuple).boxed(),
            pairs.prop_map(Object::Dict).boxed(),
            (inner, 2..5usize).prop_map(|(item, count)| Object::List(vec![item; count])).boxed(),
        ];
        if protocol >= 4 {
            containers.push(several.clone().prop_map(Object::Set).boxed());
            containers.push(several.prop_map(Object::FrozenSet).boxed());
        }
        proptest::strategy::Union::new(containers).prop_map(Rc::new)
    })
}

proptest! {
    #[test]
    fn what_is_pickled_is_loaded(
        (protocol, object) in (2u8..=5).prop_flat_map(|p| (Just(p), objects(p))),
        wide: bool,
    ) {
        let file = pickle(&object, Style { protocol, wide });
        let (values, top) = load_bytes(&file).unwrap();
        prop_assert!(same(&values, top, &object));
        for cut in 0..file.len() {
            let end = file[..cut].len() as u64;
            let Err(Error::Truncated { offset, .. }) = load_bytes(&file[..cut]) else {
                panic!("not truncated at {cut}");
            };
            prop_assert_eq!(offset, end);
        }
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = load_bytes(&bytes);
    }

    /// Opcodes at random, with arguments that are likely to fit.
    #[test]
    fn no_opcodes_panic(opcodes in proptest::collection::vec(proptest::sample::select(
        b"(01NN\x88K\x00M\x00\x01]})\x8faesu\x90t\x85\x86\x87\x91h\x00q\x00\x942K\x01.".to_vec()
    ), 0..200)) {
        let _ = load_bytes(&opcodes);
    }
}

/// More items than are added at once.
#[test]
fn long_lists_come_in_batches() {
    for count in [999, 1000, 1001, 2000, 5001] {
        let object = pickler::list((0..count).map(pickler::int));
        let (values, top) =
            load_bytes(&pickle(&object, Style { protocol: 4, wide: false })).unwrap();
        assert!(same(&values, top, &object), "{count}");
    }
}

#[test]
fn a_list_that_is_used_twice_is_one_list() {
    let inner = pickler::list([pickler::int(7)]);
    let outer = pickler::list([inner.clone(), inner]);
    let (values, top) = load_bytes(&pickle(&outer, Style { protocol: 2, wide: false })).unwrap();
    let Value::Container(top) = top else { panic!("{top:?}") };
    let mut items = values.items(top);
    let (first, second) = (items.next(&values), items.next(&values));
    assert!(first.is_some());
    assert_eq!(first, second);
}

#[test]
fn lists_grow_in_turn_and_keep_their_order() {
    // Two lists, put aside as 0 and 1, that get an item each in turn.
    let mut file = b"\x80\x02]q\x00]q\x01".to_vec();
    for item in 0..10 {
        file.extend([b'h', item % 2, b'K', item, b'a', b'0']);
    }
    file.extend(b"\x86.");
    let (values, top) = load_bytes(&file).unwrap();
    let lists = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]];
    let lists = lists.map(|items| pickler::list(items.map(pickler::int)));
    assert!(same(&values, top, &Object::Tuple(lists.to_vec())));
}

/// A list that contains itself, in the four ways that picklers write such things.
#[test]
fn circles_are_loaded() {
    let files: [&[u8]; 4] = [
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x04]\x94(h\x00h\x00e.",
        // A tuple in a list in that tuple: it is made within, and then what was begun is dropped.
        b"\x80\x02]q\x00h\x00\x85q\x01a0h\x01.",
        b"\x80\x02(]q\x00(h\x00h\x00h\x00h\x00tq\x01a1h\x01.",
    ];
    for file in files {
        load_bytes(file).unwrap();
    }
}

#[test]
fn what_would_run_code_is_refused_by_name_and_place() {
    let refused: [(&[u8], &str); 15] = [
        (b"cos\nsystem\n", "GLOBAL"),
        (b"\x93", "STACK_GLOBAL"),
        (b"R", "REDUCE"),
        (b"b", "BUILD"),
        (b"ios\nsystem\n", "INST"),
        (b"o", "OBJ"),
        (b"\x81", "NEWOBJ"),
        (b"\x92", "NEWOBJ_EX"),
        (b"P0\n", "PERSID"),
        (b"Q", "BINPERSID"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
        (b"\x97", "NEXT_BUFFER"),
        (b"I1\n", "INT"),
    ];
    for (opcode, expected) in refused {
        let file = [b"\x80\x04NN(NN", opcode, b"."].concat();
        match load_bytes(&file) {
            Err(Error::RefusedOpcode { offset: 7, name }) => assert_eq!(name, expected),
            other => panic!("{expected}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn what_does_not_fit_is_wrong_at_its_place() {
    // What is wrong, and where.
    let wrong: [(&[u8], u64); 18] = [
        (b"\x80\x06N.", 0),
        (b"\x80\x01N.", 0),
        (b"\x80\x02.", 2),
        (b"\x80\x020.", 2),
        (b"\x80\x021.", 2),
        (b"\x80\x02a.", 2),
        (b"\x80\x02Na.", 3),
        (b"\x80\x02NNa.", 4),
        (b"\x80\x02]NNs.", 5),
        (b"\x80\x02}(Nu.", 5),
        (b"\x80\x02(e.", 3),
        (b"\x80\x02h\x00.", 2),
        (b"\x80\x02q\x00.", 2),
        (b"\x80\x02N(\x85.", 4),
        // What lies below a mark is out of reach.
        (b"\x80\x02N(.", 4),
        (b"\x80\x02N(2.", 4),
        (b"\x80\x02N(q\x00.", 4),
        (b"\x80\x02\x8a\x11.", 2),
    ];
    for (file, expected) in wrong {
        match load_bytes(file) {
            Err(Error::Pickle { offset, .. }) => assert_eq!(offset, expected, "{file:?}"),
            other => panic!("{file:?}: {:?}", other.map(|_| ())),
        }
    }
    assert!(matches!(
        load_bytes(b"\x80\x02N\xff."),
        Err(Error::UnknownOpcode { offset: 3, byte: 0xff })
    ));
}

#[test]
fn numbers_may_be_put_aside_in_any_order() {
    let file = b"\x80\x02K\x07r\xff\xff\xff\xffK\x08q\x00K\x09q\x010j\xff\xff\xff\xffh\x00\x87.";
    let (values, top) = load_bytes(file).unwrap();
    let expected = [8, 7, 8].map(pickler::int);
    assert!(same(&values, top, &Object::Tuple(expected.to_vec())));
}

//! Where in the program something happened: stacks of frames, each stored once.

use std::collections::HashMap;
use std::num::NonZeroU32;

/// A stack of frames: its number in [`Sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(NonZeroU32);

impl SiteId {
    fn from_index(index: usize) -> Option<Self> {
        let number = u32::try_from(index).ok()?.checked_add(1)?;
        NonZeroU32::new(number).map(Self)
    }

    /// From 0, in the order in which stacks were first seen.
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'s> {
    /// The function.
    pub name: &'s str,
    /// The source file.
    pub file: &'s str,
    /// The line in it; 0 where it isn't known.
    pub line: u32,
}

/// A frame whose texts are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stored {
    name: u32,
    file: u32,
    line: u32,
}

/// The stacks of a file, of all its devices. Equal stacks have one number.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    texts: Vec<Box<str>>,
    frames: Vec<Stored>,
    /// The frames of all stacks, innermost first, one stack after another.
    stacks: Vec<u32>,
    /// Where each stack ends in `stacks`.
    ends: Vec<usize>,
    /// The numbers of what has been seen.
    text_numbers: HashMap<Box<str>, u32>,
    frame_numbers: HashMap<Stored, u32>,
    site_numbers: HashMap<Box<[u32]>, SiteId>,
}

/// A frame: its number in [`Sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameId(pub(crate) u32);

impl Sites {
    /// How many stacks there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Is there no stack?
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All stacks, in the order of their numbers.
    pub fn ids(&self) -> impl Iterator<Item = SiteId> + use<> {
        (0..self.len()).filter_map(SiteId::from_index)
    }

    /// The stack with this place, if there is one.
    pub(crate) fn id(&self, index: usize) -> Option<SiteId> {
        SiteId::from_index(index).filter(|_| index < self.len())
    }

    /// The frames of a stack, innermost first.
    ///
    /// # Panics
    ///
    /// If `site` is the number of another file's stack and this one has fewer.
    pub fn frames(&self, site: SiteId) -> impl ExactSizeIterator<Item = Frame<'_>> {
        self.numbers(site).iter().map(|&number| {
            let Stored { name, file, line } = self.frames[number as usize];
            Frame { name: &self.texts[name as usize], file: &self.texts[file as usize], line }
        })
    }

    /// How many different frames there are.
    pub(crate) fn nr_frames(&self) -> usize {
        self.frames.len()
    }

    /// The frames of a stack, as numbers that are the same for equal frames.
    pub(crate) fn numbers(&self, site: SiteId) -> &[u32] {
        let index = site.index();
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.stacks[start..self.ends[index]]
    }

    /// The number of a stack, innermost frame first. None for an empty one, and in the unlikely
    /// case that 2^32 are known already.
    pub fn add<'f>(&mut self, frames: impl IntoIterator<Item = Frame<'f>>) -> Option<SiteId> {
        let frames: Option<Vec<FrameId>> =
            frames.into_iter().map(|frame| self.add_frame(frame)).collect();
        self.add_stack(&frames?)
    }

    pub(crate) fn add_frame(&mut self, frame: Frame<'_>) -> Option<FrameId> {
        let name = self.add_text(frame.name)?;
        let file = self.add_text(frame.file)?;
        let stored = Stored { name, file, line: frame.line };
        if let Some(&number) = self.frame_numbers.get(&stored) {
            return Some(FrameId(number));
        }
        let number = u32::try_from(self.frames.len()).ok()?;
        self.frames.push(stored);
        self.frame_numbers.insert(stored, number);
        Some(FrameId(number))
    }

    fn add_text(&mut self, text: &str) -> Option<u32> {
        if let Some(&number) = self.text_numbers.get(text) {
            return Some(number);
        }
        let number = u32::try_from(self.texts.len()).ok()?;
        self.texts.push(text.into());
        self.text_numbers.insert(text.into(), number);
        Some(number)
    }

    pub(crate) fn add_stack(&mut self, frames: &[FrameId]) -> Option<SiteId> {
        if frames.is_empty() {
            return None;
        }
        let numbers: Box<[u32]> = frames.iter().map(|frame| frame.0).collect();
        if let Some(&site) = self.site_numbers.get(&numbers) {
            return Some(site);
        }
        let site = SiteId::from_index(self.ends.len())?;
        self.stacks.extend_from_slice(&numbers);
        self.ends.push(self.stacks.len());
        self.site_numbers.insert(numbers, site);
        Some(site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(line: u32) -> Frame<'static> {
        Frame { name: "forward", file: "model.py", line }
    }

    #[test]
    fn equal_stacks_are_one() {
        let mut sites = Sites::default();
        let first = sites.add([frame(1), frame(2)]).unwrap();
        let other = sites.add([frame(2), frame(1)]).unwrap();
        assert_ne!(first, other);
        assert_eq!(sites.add([frame(1), frame(2)]), Some(first));
        assert_eq!(sites.len(), 2);
        assert_eq!(sites.frames(other).collect::<Vec<_>>(), [frame(2), frame(1)]);
        assert_eq!(sites.ids().collect::<Vec<_>>(), [first, other]);
        assert_eq!(sites.frames.len(), 2);
        assert_eq!(sites.texts.len(), 2);
    }

    #[test]
    fn an_empty_stack_is_no_site() {
        assert_eq!(Sites::default().add([]), None);
    }
}

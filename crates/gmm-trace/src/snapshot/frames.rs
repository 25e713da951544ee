//! Stacks of frames.

use super::Reader;
use super::fields::{Place, SEEN, text};
use crate::Error;
use crate::error::Expected;
use crate::pickle::{Container, Kind, Value};
use crate::sites::{Frame, FrameId, SiteId};

/// The mark of a list without frames. That of others is their site's place.
const NO_SITE: u32 = SEEN - 1;

/// Names are cut at so many bytes: each frame may share one long name with all others, and is
/// compared with them.
const MAX_NAME_BYTES: usize = 4096;

fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(MAX_NAME_BYTES)]
}

impl Reader {
    /// The stack in a field `frames`. None where there is none.
    pub(super) fn site(
        &mut self,
        parent: Place,
        frames: Option<Value>,
    ) -> Result<Option<SiteId>, Error> {
        let Some(frames) = frames.filter(|&frames| frames != Value::None) else { return Ok(None) };
        let list = self.sequence(frames).ok_or(parent.wrong("frames", Expected::List))?;
        match self.values.mark(list) {
            Some(NO_SITE) => return Ok(None),
            Some(SEEN) | None => {}
            Some(site) => return Ok(self.sites.id(site as usize)),
        }
        let (place, mut items) = self.enter(list, "stack of frames")?;
        let mut stack = Vec::new();
        while let Some(frame) = items.next(&self.values) {
            stack.push(self.frame(place, frame)?);
        }
        let site = self.sites.add_stack(&stack);
        self.values.set_mark(list, site.map_or(NO_SITE, |site| site.index() as u32));
        Ok(site)
    }

    fn frame(&mut self, parent: Place, frame: Value) -> Result<FrameId, Error> {
        let dict = match frame {
            Value::Container(dict) if self.values.kind(dict) == Kind::Dict => dict,
            _ => return Err(parent.wrong("frame", Expected::Dictionary)),
        };
        match self.values.mark(dict) {
            Some(SEEN) | None => self.new_frame(dict),
            Some(frame) => Ok(FrameId(frame)),
        }
    }

    fn new_frame(&mut self, dict: Container) -> Result<FrameId, Error> {
        let (place, items) = self.enter(dict, "frame")?;
        let [name, file, line] = self.fields(items, ["name", "filename", "line"]);
        let name = String::from_utf8_lossy(cut(text(&self.values, place, "name", name)?));
        let file = String::from_utf8_lossy(cut(text(&self.values, place, "filename", file)?));
        let line = self.integer(place, "line", line)?;
        let line = u32::try_from(line).unwrap_or(0);
        let frame = self.sites.add_frame(Frame { name: &name, file: &file, line });
        let frame = frame.filter(|frame| frame.0 < NO_SITE).ok_or(Error::TooMany {
            offset: place.offset,
            what: "frames",
            limit: u64::from(NO_SITE),
        })?;
        self.values.set_mark(dict, frame.0);
        Ok(frame)
    }
}

//! Shardy's meshes as XLA keeps them in `xla.sdy.meshes`:
//! `{mesh = #sdy.mesh<["data"=2, "model"=4], device_ids=[0, 2, ...]>}`.

use super::mesh::Mesh;
use crate::ir::decode::DeviceOrder;

/// The meshes in the text, in text order; unreadable and single-device meshes are left out.
pub(super) fn shardy_meshes(text: &[u8]) -> Vec<Mesh> {
    const START: &[u8] = b"#sdy.mesh<";
    let finder = memchr::memmem::Finder::new(START);
    let starts = finder.find_iter(text);
    starts
        .filter_map(|start| {
            let mut reader = Reader { rest: text.get(start + START.len()..)? };
            reader.mesh()
        })
        .collect()
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn eat(&mut self, token: &[u8]) -> bool {
        self.rest = self.rest.trim_ascii_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn mesh(&mut self) -> Option<Mesh> {
        let mut axes = Vec::new();
        // Older texts list the axes without brackets.
        self.eat(b"[");
        while self.eat(b"\"") {
            let name = self.name()?;
            if !self.eat(b"=") {
                return None;
            }
            axes.push((name, self.integer()?));
            self.eat(b",");
        }
        self.eat(b"]");
        self.eat(b",");
        let mut order = None;
        if self.eat(b"device_ids") {
            if !(self.eat(b"=") && self.eat(b"[")) {
                return None;
            }
            let mut devices = Vec::new();
            while !self.eat(b"]") {
                devices.push(self.integer()?);
                self.eat(b",");
            }
            order = Some(devices);
        }
        if !self.eat(b">") || axes.is_empty() {
            return None;
        }
        let mesh = Mesh::new(axes).ok()?;
        match order {
            Some(devices) => mesh.with_device_order(&DeviceOrder::List(devices)).ok(),
            None => Some(mesh),
        }
    }

    /// Reads a name after its opening quote; a backslash escapes the next byte.
    fn name(&mut self) -> Option<String> {
        let mut name = Vec::new();
        loop {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(String::from_utf8_lossy(&name).into_owned()),
                b'\\' => {
                    let (byte, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    name.push(*byte);
                }
                _ => name.push(*byte),
            }
        }
    }

    fn integer(&mut self) -> Option<i64> {
        self.rest = self.rest.trim_ascii_start();
        let digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'-';
        let length = self.rest.iter().take_while(|byte| digit(byte)).count();
        let (number, rest) = self.rest.split_at(length);
        self.rest = rest;
        std::str::from_utf8(number).ok()?.parse().ok()
    }
}

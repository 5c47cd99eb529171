//! Shardings and replica groups in the older forms.

use super::Checker;
use super::lexer::Kind;
use super::newer::Newer;
use crate::error::{ErrorKind, ParseError, Result};

/// The contents of `devices=`.
#[derive(Default)]
struct Tiles {
    dimensions: usize,
    /// The product of the tile dimensions, the product of the iota's dimensions, and the device
    /// count.
    product: i64,
    reshape_product: i64,
    reshape: usize,
    transpose: usize,
    devices: usize,
}

impl Tiles {
    fn new() -> Self {
        Self { product: 1, reshape_product: 1, ..Self::default() }
    }

    /// Whether there are as many devices as tiles, as XLA newer than jaxlib 0.10.2 requires.
    fn counts_agree(&self) -> bool {
        let devices = if self.reshape > 0 { self.reshape_product } else { self.devices as i64 };
        self.product == devices
    }
}

impl Checker<'_> {
    /// Reads `{replicated}` or a tuple of shardings.
    pub(super) fn sharding(&mut self) -> Result<()> {
        if self.kind() != Kind::LeftBrace {
            return Err(self.error(ErrorKind::InvalidSharding, "expected '{' before a sharding"));
        }
        if !matches!(self.lexer.look_ahead(), Kind::LeftBrace | Kind::RightBrace) {
            return self.single_sharding();
        }
        self.list(Kind::LeftBrace, Kind::RightBrace, Self::single_sharding)?;
        Ok(())
    }

    fn single_sharding(&mut self) -> Result<()> {
        let place = self.lexer.span();
        if !self.eat(Kind::LeftBrace) {
            return Err(self.error(ErrorKind::InvalidSharding, "expected '{' before a sharding"));
        }
        if self.kind() == Kind::Ident && matches!(self.lexer.word(), b"mesh" | b"maximal_mesh") {
            return self.named_sharding();
        }
        let mut words = [false; 5];
        let mut tiles = Tiles::new();
        let mut last_dimensions = 0;
        let mut replicate_last = false;
        const WORDS: [&[u8]; 5] = [b"replicated", b"maximal", b"manual", b"unknown", b"unreduced"];
        while self.kind() != Kind::RightBrace {
            if self.kind() == Kind::AttributeName {
                match self.lexer.word() {
                    b"device" => {
                        self.advance();
                        self.integer()?;
                        tiles.devices = 1;
                    }
                    b"devices" => {
                        self.advance();
                        self.tile_assignment(&mut tiles, true)?;
                    }
                    b"metadata" => {
                        self.advance();
                        self.metadata_list()?;
                    }
                    b"last_tile_dims" => {
                        self.advance();
                        last_dimensions = self.subgroup_kinds()?;
                    }
                    _ => {
                        return Err(self.error(
                            ErrorKind::InvalidSharding,
                            "expected device=, devices=, metadata= or last_tile_dims=",
                        ));
                    }
                }
                continue;
            }
            let word = self.lexer.word();
            let is_keyword = self.kind() == Kind::Keyword;
            if is_keyword && let Some(at) = WORDS.iter().position(|known| *known == word) {
                words[at] = true;
                self.advance();
            } else if self.eat_keyword(b"last_tile_dim_replicate") {
                replicate_last = true;
            } else if self.eat_keyword(b"shard_as") || self.eat_keyword(b"shard_like") {
                self.integer()?;
            } else {
                return Err(self.error(ErrorKind::InvalidSharding, "unknown word in a sharding"));
            }
        }
        self.advance();
        let wrong = |message: &'static str| {
            Err(ParseError::new(ErrorKind::InvalidSharding, place, message))
        };
        let [replicated, maximal, manual, unknown, unreduced] = words;
        if replicated || !maximal && (manual || unknown || unreduced) {
            if tiles.devices > 0 {
                return wrong("this sharding must not have devices");
            }
        } else if maximal {
            if tiles.devices != 1 {
                return wrong("a maximal sharding must have exactly one device");
            }
        } else {
            if tiles.dimensions == 0 {
                return wrong("a tiled sharding needs devices=[...] with dimensions");
            }
            if tiles.reshape != tiles.transpose {
                return wrong("reshape and transpose of a sharding have different lengths");
            }
            if tiles.reshape == 0 && tiles.devices <= 1 {
                return wrong("a tiled sharding needs more than one device");
            }
            if last_dimensions > 0 && replicate_last {
                return wrong("last_tile_dims and last_tile_dim_replicate exclude each other");
            }
            if self.allows(Newer::DeviceCounts) && !tiles.counts_agree() {
                return wrong("the number of devices is not the product of the tile dimensions");
            }
            if last_dimensions > tiles.dimensions {
                return wrong("the sharding has fewer dimensions than subgroup kinds");
            }
        }
        Ok(())
    }

    /// Reads `[2,2]0,1,2,3` or `[2,2]<=[4]`; `devices` tells whether device lists are allowed.
    fn tile_assignment(&mut self, tiles: &mut Tiles, devices: bool) -> Result<()> {
        self.expect(Kind::LeftSquare, "'[' before the dimensions of a tile assignment")?;
        loop {
            let place = self.lexer.span();
            let size = self.integer()?;
            tiles.product = tiles.product.wrapping_mul(size);
            if size < 0 && devices {
                return Err(ParseError::new(
                    ErrorKind::InvalidSharding,
                    place,
                    "a tile dimension must not be negative",
                ));
            }
            tiles.dimensions += 1;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightSquare, "',' or ']' in a tile assignment")?;
        if self.eat(Kind::LessEqual) {
            return self.iota(tiles);
        }
        if !devices {
            return Err(self.expected("'<=' after the shape of replica groups"));
        }
        loop {
            self.integer()?;
            tiles.devices += 1;
            if !self.eat(Kind::Comma) {
                return Ok(());
            }
        }
    }

    /// Reads `[2,4]T(1,0)`; the transpose is only allowed with several dimensions.
    fn iota(&mut self, tiles: &mut Tiles) -> Result<()> {
        let (count, product) = self.iota_dimensions()?;
        tiles.reshape += count;
        tiles.reshape_product = tiles.reshape_product.wrapping_mul(product);
        if tiles.reshape == 1 {
            tiles.transpose += 1;
            return Ok(());
        }
        tiles.transpose += self.permutation(tiles.reshape)?;
        Ok(())
    }

    /// Reads `[2,4]`; returns the number of dimensions and their product.
    pub(super) fn iota_dimensions(&mut self) -> Result<(usize, i64)> {
        self.expect(Kind::LeftSquare, "'[' before the dimensions of an iota")?;
        let mut count = 0;
        let mut product = 1i64;
        loop {
            product = product.wrapping_mul(self.integer()?);
            count += 1;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightSquare, "',' or ']' in an iota")?;
        Ok((count, product))
    }

    /// Reads `T(1,0)`; returns the number of integers.
    pub(super) fn permutation(&mut self, rank: usize) -> Result<usize> {
        if !self.eat_word(b"T") {
            return Err(self.expected("'T(' after the dimensions of an iota"));
        }
        self.expect(Kind::LeftParen, "'(' before a permutation")?;
        let mut count = 0;
        loop {
            let place = self.lexer.span();
            let value = self.integer()?;
            if usize::try_from(value).ok().is_none_or(|value| value >= rank) {
                return Err(ParseError::new(
                    ErrorKind::InvalidSharding,
                    place,
                    format!("a permutation of {rank} dimensions must have numbers below {rank}"),
                ));
            }
            count += 1;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightParen, "',' or ')' in a permutation")?;
        Ok(count)
    }

    fn subgroup_kinds(&mut self) -> Result<usize> {
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
            let known = checker.kind() == Kind::Keyword
                && matches!(
                    checker.lexer.word(),
                    b"manual" | b"replicated" | b"maximal" | b"unreduced"
                );
            if !known {
                return Err(checker.error(
                    ErrorKind::InvalidSharding,
                    "expected manual, replicated, maximal or unreduced",
                ));
            }
            checker.advance();
            Ok(())
        })
    }

    /// Reads `{...}` or `{{...}, {...}}`.
    pub(super) fn metadata_list(&mut self) -> Result<()> {
        if self.kind() == Kind::LeftBrace && self.lexer.look_ahead() == Kind::LeftBrace {
            self.list(Kind::LeftBrace, Kind::RightBrace, Self::metadata)?;
            return Ok(());
        }
        self.metadata()
    }

    /// Reads replica groups of any form.
    pub(super) fn replica_groups(&mut self) -> Result<()> {
        match self.kind() {
            Kind::LeftBrace => {
                self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
                    checker.integer_list().map(drop)
                })?;
                Ok(())
            }
            Kind::Ident if matches!(self.lexer.word(), b"mesh" | b"maximal_mesh") => {
                self.mesh_groups()
            }
            _ => {
                let place = self.lexer.span();
                let mut tiles = Tiles::new();
                self.tile_assignment(&mut tiles, false)?;
                if tiles.dimensions != 2 {
                    return Err(ParseError::new(
                        ErrorKind::InvalidAttribute,
                        place,
                        "replica groups must have two dimensions: groups and their size",
                    ));
                }
                if self.allows(Newer::DeviceCounts) && !tiles.counts_agree() {
                    return Err(ParseError::new(
                        ErrorKind::InvalidAttribute,
                        place,
                        "the groups and the iota differ in the number of devices",
                    ));
                }
                Ok(())
            }
        }
    }
}

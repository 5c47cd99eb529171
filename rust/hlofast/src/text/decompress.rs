//! Compressed input: gzip, zlib, xz and zstd, recognised by their first bytes, never by a file name.
//!
//! Memory is bounded: the output grows with the bytes actually decompressed, whatever size the
//! input declares, and the decoders' windows have limits.

use crate::error::{ErrorKind, ParseError, Result};
use crate::text::Span;
use std::io::{self, Read};

/// Default limit on the decompressed size. A few crafted kilobytes can expand to any size, so there
/// is always a limit.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;

/// Memory that an xz decoder may take for its dictionary (`xz -9` needs 64 MiB).
const XZ_MEMORY: u64 = 160 << 20;

/// Logarithm of the largest zstd window (`zstd --ultra -22` needs 27).
const ZSTD_WINDOW_LOG: u32 = 27;

const FIRST_CHUNK: usize = 64 << 10;

/// Decompressed text with more bytes than these is given up at a NUL.
const LARGE_TEXT: usize = 16 << 20;

/// A compressed format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// One or more gzip members.
    Gzip,
    /// A zlib stream, as in JAX's compilation cache.
    Zlib,
    /// One or more xz streams.
    Xz,
    /// One or more zstd frames.
    Zstd,
}

impl Compression {
    /// The format that `bytes` begin with.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            // The levels of zlib. Text may begin with `x^`, but then it goes on with text.
            [0x78, 0x01 | 0x9c | 0xda, ..] => Some(Self::Zlib),
            [0x78, 0x5e, next, ..] if !next.is_ascii_graphic() && !next.is_ascii_whitespace() => {
                Some(Self::Zlib)
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // A zstd file may begin with a frame for the reader to skip (seekable and parallel
            // writers put one there).
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }
}

/// The decompressed `bytes`, or None if they are not compressed. More than `max_bytes` of output
/// ([`DEFAULT_MAX_BYTES`] if None) is an error.
pub fn decompress(bytes: &[u8], max_bytes: Option<u64>) -> Result<Option<Vec<u8>>> {
    let Some(format) = Compression::of(bytes) else { return Ok(None) };
    let limit = max_bytes.unwrap_or(DEFAULT_MAX_BYTES);
    let output = decoder(format, bytes).map_err(Stop::Broken);
    let output = output.and_then(|decoder| drain(decoder, limit));
    output.map(Some).map_err(|stop| explain(format, limit, stop))
}

/// The first `most` decompressed bytes of `bytes`, the beginning of compressed input; fewer if the
/// input cannot be decompressed that far.
pub fn decompress_head(bytes: &[u8], most: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(most);
    let decoder = Compression::of(bytes).and_then(|format| decoder(format, bytes).ok());
    if let Some(mut decoder) = decoder {
        let mut piece = [0u8; 512];
        while head.len() < most {
            match decoder.read(&mut piece) {
                Ok(count) if count > 0 => head.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        head.truncate(most);
    }
    head
}

fn decoder(format: Compression, bytes: &[u8]) -> io::Result<Box<dyn Read + '_>> {
    Ok(match format {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(bytes)),
        Compression::Zlib => Box::new(flate2::bufread::ZlibDecoder::new(bytes)),
        Compression::Xz => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, flags)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(bytes, stream))
        }
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
    })
}

enum Stop {
    /// The decoder rejects the input.
    Broken(io::Error),
    /// The output exceeds the limit.
    Limit,
    /// The system has no more memory.
    Memory,
    /// The output is a large text with NUL bytes.
    Binary,
}

/// Reads to the end, at most `limit` bytes. The buffer doubles with the bytes actually read and
/// never grows beyond the limit (plus the one byte that shows there is more).
fn drain(mut decoder: impl Read, limit: u64) -> std::result::Result<Vec<u8>, Stop> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX - 1).min(usize::MAX - 1);
    let mut output: Vec<u8> = Vec::new();
    loop {
        let chunk = output.len().max(FIRST_CHUNK).min(limit + 1 - output.len());
        output.try_reserve_exact(chunk).map_err(|_| Stop::Memory)?;
        let before = output.len();
        decoder.by_ref().take(chunk as u64).read_to_end(&mut output).map_err(Stop::Broken)?;
        if output.len() > limit {
            return Err(Stop::Limit);
        }
        // Text has no NUL. Faults of small texts have a line and a column, which need the whole text.
        let is_text = output.starts_with(b"HloModule");
        if is_text && output.len() > LARGE_TEXT && memchr::memchr(0, &output[before..]).is_some() {
            return Err(Stop::Binary);
        }
        if output.len() - before < chunk {
            output.shrink_to_fit();
            return Ok(output);
        }
    }
}

#[cold]
fn explain(format: Compression, limit: u64, stop: Stop) -> ParseError {
    let name = format.as_str();
    match stop {
        Stop::Limit => ParseError::new(
            ErrorKind::TooLarge,
            Span::EMPTY,
            format!("the {name} data decompresses to more than {limit} bytes"),
        )
        .with_help("raise max_bytes if the file is meant to be that large"),
        Stop::Binary => ParseError::new(
            ErrorKind::NotHlo,
            Span::EMPTY,
            format!("the {name} data decompresses to NUL bytes after text"),
        )
        .with_help("the file is damaged: copy it again, or dump again"),
        Stop::Memory => ParseError::new(
            ErrorKind::TooLarge,
            Span::EMPTY,
            format!("there is not enough memory to decompress the {name} data"),
        )
        .with_help("lower max_bytes, or decompress on a larger machine"),
        Stop::Broken(error) => {
            let truncated = error.kind() == io::ErrorKind::UnexpectedEof
                || error.to_string().contains("incomplete frame");
            let what = if truncated { "ends too early" } else { "cannot be decompressed" };
            ParseError::new(
                ErrorKind::InvalidCompression,
                Span::EMPTY,
                format!("the {name} data {what} ({error})"),
            )
            .with_help(if truncated {
                "the file was cut off: copy it again, or dump again"
            } else {
                "the file is damaged: copy it again, or test it with the tool that wrote it"
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn xz(data: &[u8]) -> Vec<u8> {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        // The zstd tool writes a checksum too; without one, some damage goes unnoticed.
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn failure(packed: &[u8]) -> ParseError {
        decompress(packed, None).map(|text| text.map(|text| text.len())).unwrap_err()
    }

    type Writer = fn(&[u8]) -> Vec<u8>;
    const WRITERS: [Writer; 3] = [gzip, xz, zstd];

    #[test]
    fn reads_what_each_format_writes() {
        let text = b"HloModule m\n\nENTRY e { ROOT p = f32[] parameter(0) }\n".repeat(5000);
        for (write, name) in WRITERS.iter().zip(["gzip", "xz", "zstd"]) {
            let packed = write(&text);
            assert_eq!(Compression::of(&packed).unwrap().as_str(), name);
            assert_eq!(decompress(&packed, None).unwrap().unwrap(), text);
        }
        assert_eq!(decompress(&text, None).unwrap(), None);
        assert_eq!(decompress(b"", None).unwrap(), None);
    }

    #[test]
    fn reads_concatenated_members() {
        for write in WRITERS {
            let packed = [write(b"HloModule "), write(b""), write(b"m\n")].concat();
            assert_eq!(decompress(&packed, None).unwrap().unwrap(), b"HloModule m\n");
        }
    }

    #[test]
    fn skips_leading_zstd_frames() {
        let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(b"text")].concat();
        assert_eq!(decompress(&skipped, None).unwrap().unwrap(), b"text");
    }

    #[test]
    fn the_limit_is_exact() {
        let text = vec![b'x'; 300_000];
        for write in WRITERS {
            let packed = write(&text);
            assert_eq!(decompress(&packed, Some(300_000)).unwrap().unwrap().len(), 300_000);
            let error = decompress(&packed, Some(299_999)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.message().contains("299999 bytes"), "{error}");
            assert!(error.help().unwrap().contains("max_bytes"));
            assert_eq!(decompress(&packed, Some(0)).unwrap_err().kind(), ErrorKind::TooLarge);
        }
        let nothing = gzip(b"");
        assert_eq!(decompress(&nothing, Some(0)).unwrap().unwrap(), b"");
        assert_eq!(decompress(&gzip(b"ab"), Some(u64::MAX)).unwrap().unwrap(), b"ab");
    }

    #[test]
    fn the_buffer_stays_within_the_limit() {
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer.fill(b'x');
                Ok(buffer.len())
            }
        }
        assert!(matches!(drain(Endless, 1_000_000), Err(Stop::Limit)));
        let some = drain(Endless.take(150_000), 1_000_000);
        assert!(some.is_ok_and(|output| output.len() == 150_000 && output.capacity() < 160_000));
    }

    #[test]
    fn damage_is_an_error() {
        let text: Vec<u8> = (0..40_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        for write in WRITERS {
            let packed = write(&text);
            for cut in [packed.len() / 2, packed.len() - 1, 7] {
                let error = failure(&packed[..cut]);
                assert_eq!(error.kind(), ErrorKind::InvalidCompression, "cut at {cut}");
                assert!(error.message().contains("ends too early"), "{error}");
            }
            let mut broken = packed.clone();
            let middle = broken.len() / 2;
            broken[middle..middle + 8].fill(0xff);
            let error = failure(&broken);
            assert_eq!(error.kind(), ErrorKind::InvalidCompression);
            assert!(error.help().is_some());
        }
    }

    #[test]
    fn large_windows_are_refused() {
        // A zstd frame header that asks for a window of 2^31 bytes, then one raw last block.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8];
        frame.extend_from_slice(&[0x09, 0, 0, b'x']);
        let error = decompress(&frame, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCompression);

        // An xz block header whose dictionary size is patched to 2 GiB, with its checksum renewed.
        let mut packed = xz(b"x");
        let header = 12;
        let size = (packed[header] as usize + 1) * 4;
        let at = packed[header..header + size].windows(2).position(|w| w == [0x21, 1]).unwrap();
        packed[header + at + 2] = 38;
        let mut checksum = flate2::Crc::new();
        checksum.update(&packed[header..header + size - 4]);
        packed[header + size - 4..header + size].copy_from_slice(&checksum.sum().to_le_bytes());
        let error = decompress(&packed, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCompression);
        assert!(error.message().to_lowercase().contains("memory"), "{error}");
    }
}

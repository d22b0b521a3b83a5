//! A small picture of an image, drawn in a child process.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

/// Longer side of a thumbnail, in pixels.
const EDGE: u32 = 256;
/// Longest side of an image that is looked at, in pixels.
const SIDE_MAX: u32 = 20_000;
/// Memory that decoding one may take, in bytes; the child has a little more.
const MEMORY: u64 = 256 << 20;
/// Quality of a thumbnail without transparency, 1 to 100.
const QUALITY: u8 = 80;

/// A PNG if the image has transparency, else a JPEG: upright, and no larger than it was.
///
/// # Errors
/// Why there is none, in words.
pub(super) fn thumbnail(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| e.to_string())?;
    // What the content is, whatever the name says.
    match reader.format() {
        Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::Gif | ImageFormat::WebP) => {}
        _ => return Err("it is no PNG, JPEG, GIF or WebP".to_owned()),
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(MEMORY);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| e.to_string())?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let image = DynamicImage::from_decoder(decoder).map_err(|e| e.to_string())?;
    let larger = image.width() > EDGE || image.height() > EDGE;
    let mut small = if larger { image.thumbnail(EDGE, EDGE) } else { image };
    small.apply_orientation(orientation);
    encode(&small).map_err(|e| e.to_string())
}

fn encode(image: &DynamicImage) -> image::ImageResult<Vec<u8>> {
    let mut out = Cursor::new(Vec::new());
    if image.color().has_alpha() {
        DynamicImage::from(image.to_rgba8()).write_to(&mut out, ImageFormat::Png)?;
    } else {
        JpegEncoder::new_with_quality(&mut out, QUALITY).encode_image(&image.to_rgb8())?;
    }
    Ok(out.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        let image = image::RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, 7]));
        image.write_to(&mut out, format).unwrap();
        out.into_inner()
    }

    #[test]
    fn every_format_becomes_small() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::WebP] {
            let bytes = thumbnail(&image(format, 1000, 500)).unwrap();
            let small = image::load_from_memory(&bytes).unwrap();
            assert_eq!((small.width(), small.height()), (256, 128), "{format:?}");
            assert!(bytes.len() < 60_000, "{format:?}: {}", bytes.len());
        }
        let tiny = image::load_from_memory(&thumbnail(&image(ImageFormat::Png, 3, 2)).unwrap()).unwrap();
        assert_eq!((tiny.width(), tiny.height()), (3, 2));
    }

    #[test]
    fn transparency_stays() {
        let mut out = Cursor::new(Vec::new());
        image::RgbaImage::from_pixel(9, 9, image::Rgba([1, 2, 3, 0])).write_to(&mut out, ImageFormat::Png).unwrap();
        let bytes = thumbnail(&out.into_inner()).unwrap();
        assert!(bytes.starts_with(b"\x89PNG"));
        assert_eq!(image::load_from_memory(&bytes).unwrap().to_rgba8().get_pixel(4, 4).0, [1, 2, 3, 0]);
    }

    #[test]
    fn what_is_no_image_or_too_large_is_refused() {
        for bytes in [&b""[..], b"GIF", b"\x89PNG\r\n\x1a\n", b"%PDF-1.7", b"BM123456", b"<svg/>"] {
            assert!(thumbnail(bytes).is_err(), "{bytes:?}");
        }
        let whole = image(ImageFormat::Png, 300, 300);
        assert!(thumbnail(&whole[..whole.len() / 2]).is_err());
        // A header that promises 30,000 by 30,000 pixels.
        let mut bomb = whole;
        bomb[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
        assert!(thumbnail(&bomb).is_err());
    }
}

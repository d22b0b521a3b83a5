//! This machine in the words of the OCI image spec (those of Go), and which images fit it.

/// What an image is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Platform {
    /// `linux`.
    pub(super) os: String,
    /// `amd64`.
    pub(super) architecture: String,
    /// `v8`; of `amd64` the level of its instruction set, none being the first.
    pub(super) variant: Option<String>,
}

impl Platform {
    /// This machine's.
    pub(super) fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", Some(format!("v{}", amd64_level()))),
            "aarch64" => ("arm64", Some("v8".to_owned())),
            "arm" => ("arm", Some("v7".to_owned())),
            "x86" => ("386", None),
            other => (other, None),
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant }
    }

    /// How well an image for `offered` fits this machine: more is better. None: it does not run here.
    pub(super) fn fit(&self, offered: &Self) -> Option<u32> {
        if (&offered.os, &offered.architecture) != (&self.os, &self.architecture) {
            return None;
        }
        let mine = level(self.variant.as_deref(), &self.architecture)?;
        let theirs = level(offered.variant.as_deref(), &offered.architecture)?;
        (theirs <= mine).then_some(theirs)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// The number of a variant; without one, what such images have always been built for. None: no variant that is known.
fn level(variant: Option<&str>, architecture: &str) -> Option<u32> {
    match variant {
        None | Some("") => Some(match architecture {
            "arm64" => 8,
            "arm" => 7,
            _ => 1,
        }),
        Some(text) => text.strip_prefix('v')?.split('.').next()?.parse().ok(),
    }
}

/// The level of the x86-64 psABI, 1 to 4.
#[cfg(target_arch = "x86_64")]
fn amd64_level() -> u32 {
    use std::arch::is_x86_feature_detected as has;
    let v2 = has!("cmpxchg16b") && has!("popcnt") && has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2");
    let v3 = v2 && has!("avx") && has!("avx2") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("fma");
    let v3 = v3 && has!("lzcnt") && has!("movbe");
    let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    1 + u32::from(v2) + u32::from(v3) + u32::from(v4)
}

#[cfg(not(target_arch = "x86_64"))]
fn amd64_level() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(architecture: &str, variant: Option<&str>) -> Platform {
        Platform { os: "linux".into(), architecture: architecture.into(), variant: variant.map(str::to_owned) }
    }

    #[test]
    fn the_best_that_runs_here() {
        let host = platform("amd64", Some("v3"));
        let fit = |variant| host.fit(&platform("amd64", variant));
        assert!(fit(Some("v3")) > fit(Some("v2")) && fit(Some("v2")) > fit(None));
        assert_eq!((fit(Some("v4")), fit(None), fit(Some("")), fit(Some("best"))), (None, Some(1), Some(1), None));
        assert_eq!(host.fit(&platform("arm64", None)), None);
        let arm = platform("arm64", Some("v8"));
        assert_eq!((arm.fit(&platform("arm64", None)), arm.fit(&platform("arm64", Some("v8")))), (Some(8), Some(8)));
        assert_eq!(arm.fit(&platform("arm64", Some("v9"))), None);
        assert!(Platform::host().fit(&Platform { variant: None, ..Platform::host() }).is_some());
    }
}

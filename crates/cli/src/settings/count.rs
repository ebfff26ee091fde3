//! Settings that are whole numbers.

use super::Value;

macro_rules! counts {
    ($($type:ty),+) => {
        $(impl Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                match text.trim().parse::<i128>() {
                    Ok(number) if number < 1 => Err("give 1 or more".to_owned()),
                    Ok(number) => Self::try_from(number).map_err(|_| "is too large".to_owned()),
                    Err(_) => Err("is not a whole number; write, for example, `64`".to_owned()),
                }
            }
            fn shown(&self) -> String {
                self.to_string()
            }
        })+
    };
}
counts!(usize, u32);

/// A number that may be 0, which means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count0(pub u32);

impl Value for Count0 {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "0" => Ok(Self(0)),
            other => u32::read(other).map(Self),
        }
    }
    fn shown(&self) -> String {
        self.0.to_string()
    }
}

/// A number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within<const LEAST: u32, const MOST: u32>(pub u32);

impl<const LEAST: u32, const MOST: u32> Within<LEAST, MOST> {
    /// Returns the number as the size of something in memory.
    #[must_use]
    pub fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<const LEAST: u32, const MOST: u32> Value for Within<LEAST, MOST> {
    fn read(text: &str) -> Result<Self, String> {
        let number = text.trim().parse::<u32>().ok();
        number
            .filter(|number| (LEAST..=MOST).contains(number))
            .map(Self)
            .ok_or_else(|| format!("give a whole number from {LEAST} to {MOST}"))
    }
    fn shown(&self) -> String {
        self.0.to_string()
    }
}

impl Value for Option<usize> {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Ok(None),
            other => usize::read(other).map(Some),
        }
    }
    fn shown(&self) -> String {
        self.map_or_else(String::new, |number| number.to_string())
    }
}

impl Value for Option<u32> {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" | "auto" => Ok(None),
            other => u32::read(other).map(Some),
        }
    }
    fn shown(&self) -> String {
        self.map_or_else(|| "auto".to_owned(), |number| number.to_string())
    }
}

impl Value for Option<i64> {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Ok(None),
            other => other.parse().map(Some).map_err(|_| {
                "is not a whole number of 64 bits; write, for example, `100` or `-5`".to_owned()
            }),
        }
    }
    fn shown(&self) -> String {
        self.map(|number| number.to_string()).unwrap_or_default()
    }
}

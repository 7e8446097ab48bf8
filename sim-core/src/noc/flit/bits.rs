//! Round-robin searches over bitmaps.

/// The first set bit of `mask` at or after `start`, wrapping round; `None` when `mask` is 0.
/// A `start` past the last bit wraps at once.
#[inline]
pub(super) fn circular_first(mask: u64, start: u32) -> Option<u32> {
    if mask == 0 {
        return None;
    }
    let high = if start < 64 {
        mask & (u64::MAX << start)
    } else {
        0
    };
    Some(if high != 0 {
        high.trailing_zeros()
    } else {
        mask.trailing_zeros()
    })
}

/// [`circular_first`] over a map of several words.
#[inline]
pub(super) fn circular_first_wide(words: &[u64], start: u32) -> Option<u32> {
    if let [word] = words {
        return circular_first(*word, start);
    }
    let first = (start / 64) as usize;
    if let Some(&word) = words.get(first) {
        let high = word & (u64::MAX << (start % 64));
        if high != 0 {
            return Some(first as u32 * 64 + high.trailing_zeros());
        }
        for (k, &word) in words.iter().enumerate().skip(first + 1) {
            if word != 0 {
                return Some(k as u32 * 64 + word.trailing_zeros());
            }
        }
    }
    for (k, &word) in words.iter().enumerate() {
        if word != 0 {
            return Some(k as u32 * 64 + word.trailing_zeros());
        }
    }
    None
}

/// [`circular_first`] over a map whose word 0 says which of the words after it are not 0.
/// At most 64 words follow the first.
#[inline]
pub(super) fn circular_first_summed(map: &[u64], start: u32) -> Option<u32> {
    let (&summary, words) = map.split_first()?;
    if summary == 0 {
        return None;
    }
    let first = start / 64;
    if first < 64 && summary >> first & 1 == 1 {
        let high = words[first as usize] & (u64::MAX << (start % 64));
        if high != 0 {
            return Some(first * 64 + high.trailing_zeros());
        }
    }
    let word = circular_first(summary, first + 1)?;
    Some(word * 64 + words[word as usize].trailing_zeros())
}

/// Sets bit `bit` in a map with a summary word; says whether the map was empty before.
#[inline]
pub(super) fn set_summed(map: &mut [u64], bit: u32) -> bool {
    let was_empty = map[0] == 0;
    map[0] |= 1 << (bit / 64);
    map[1 + (bit / 64) as usize] |= 1 << (bit % 64);
    was_empty
}

/// Clears bit `bit` in a map with a summary word; says whether the map is empty now.
#[inline]
pub(super) fn clear_summed(map: &mut [u64], bit: u32) -> bool {
    let word = &mut map[1 + (bit / 64) as usize];
    *word &= !(1 << (bit % 64));
    if *word == 0 {
        map[0] &= !(1 << (bit / 64));
    }
    map[0] == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_wrap_and_agree() {
        assert_eq!(circular_first(0, 3), None);
        assert_eq!(circular_first(0b1010, 2), Some(3));
        assert_eq!(circular_first(0b1010, 4), Some(1));
        assert_eq!(circular_first(0b1010, 64), Some(1));
        let mut map = [0u64; 4];
        for bit in [3, 64, 130, 191] {
            set_summed(&mut map, bit);
        }
        for start in 0..=200 {
            let expect = [3, 64, 130, 191]
                .into_iter()
                .find(|b| *b >= start)
                .unwrap_or(3);
            assert_eq!(
                circular_first_summed(&map, start),
                Some(expect),
                "from {start}"
            );
            assert_eq!(
                circular_first_wide(&map[1..], start),
                Some(expect),
                "from {start}"
            );
        }
        for bit in [3, 64, 130] {
            assert!(!clear_summed(&mut map, bit));
        }
        assert!(clear_summed(&mut map, 191));
        assert_eq!(circular_first_summed(&map, 0), None);
    }
}

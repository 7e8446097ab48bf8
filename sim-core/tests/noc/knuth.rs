//! Knuth's lagged Fibonacci generators (The Art of Computer Programming, volume 2, section 3.6,
//! the version of the ninth printing): `ran_array` of 30-bit integers and `ranf_array` of
//! fractions. BookSim 2 draws its traffic from them.

/// Long and short lag of the recurrence.
const LONG: usize = 100;
const SHORT: usize = 37;
/// Numbers computed at once, of which the first [`LONG`] are used.
const BATCH: usize = 1009;
/// Streams of different seeds stay apart for 2^70 numbers.
const SEPARATION: u32 = 70;
const SEED_MASK: u64 = (1 << 30) - 1;

/// What the numbers are and how two of them combine.
pub trait Number: Copy + Default {
    /// X(j - 100) and X(j - 37) give X(j).
    fn combine(self, other: Self) -> Self;
    /// The number that the seed becomes.
    fn seeded(seed: u64) -> Self;
    /// Shifted left by one bit, cyclically, bit 0 left out.
    fn doubled(self) -> Self;
    /// With bit 0 set.
    fn odd(self) -> Self;
}

/// Integers below 2^30, subtracted modulo 2^30.
impl Number for u32 {
    fn combine(self, other: Self) -> Self {
        self.wrapping_sub(other) & SEED_MASK as u32
    }

    fn seeded(seed: u64) -> Self {
        ((seed + 2) & (SEED_MASK - 1)) as u32
    }

    fn doubled(self) -> Self {
        let twice = self << 1;
        if twice > SEED_MASK as u32 {
            twice - (SEED_MASK as u32 - 1)
        } else {
            twice
        }
    }

    fn odd(self) -> Self {
        self + 1
    }
}

/// Multiples of 2^-52 below 1, added modulo 1.
impl Number for f64 {
    fn combine(self, other: Self) -> Self {
        (self + other).fract()
    }

    fn seeded(seed: u64) -> Self {
        f64::EPSILON * 2.0 * ((seed & SEED_MASK) + 2) as f64
    }

    fn doubled(self) -> Self {
        let twice = self + self;
        if twice >= 1.0 {
            twice - (1.0 - 2.0 * f64::EPSILON)
        } else {
            twice
        }
    }

    fn odd(self) -> Self {
        self + f64::EPSILON
    }
}

/// One generator.
pub struct Knuth<T> {
    state: [T; LONG],
    batch: Vec<T>,
    next: usize,
}

impl<T: Number> Knuth<T> {
    pub fn new(seed: u64) -> Self {
        let mut x = [T::default(); 2 * LONG];
        x[0] = T::seeded(seed);
        for j in 1..LONG {
            x[j] = x[j - 1].doubled();
        }
        x[1] = x[1].odd();
        // The power of z that the seed's bits and the separation spell out, modulo z^100 + z^37 + 1.
        let (mut bits, mut left) = (seed & SEED_MASK, SEPARATION - 1);
        while left > 0 {
            for j in (1..LONG).rev() {
                x[2 * j] = x[j];
                x[2 * j - 1] = T::default();
            }
            for j in (LONG..2 * LONG - 1).rev() {
                x[j - (LONG - SHORT)] = x[j - (LONG - SHORT)].combine(x[j]);
                x[j - LONG] = x[j - LONG].combine(x[j]);
            }
            if bits & 1 == 1 {
                x.copy_within(0..LONG, 1);
                x[0] = x[LONG];
                x[SHORT] = x[SHORT].combine(x[LONG]);
            }
            if bits == 0 {
                left -= 1;
            }
            bits >>= 1;
        }
        let mut state = [T::default(); LONG];
        state[LONG - SHORT..].copy_from_slice(&x[..SHORT]);
        state[..LONG - SHORT].copy_from_slice(&x[SHORT..LONG]);
        let mut made = Knuth {
            state,
            batch: vec![],
            next: LONG,
        };
        for _ in 0..10 {
            made.array(2 * LONG - 1);
        }
        made
    }

    /// The next `count` numbers, at least 100.
    fn array(&mut self, count: usize) -> Vec<T> {
        let mut x = self.state.to_vec();
        for j in LONG..count + LONG {
            x.push(x[j - LONG].combine(x[j - SHORT]));
        }
        self.state.copy_from_slice(&x[count..]);
        x.truncate(count);
        x
    }

    pub fn draw(&mut self) -> T {
        if self.next == LONG {
            self.batch = self.array(BATCH);
            self.next = 0;
        }
        self.next += 1;
        self.batch[self.next - 1]
    }
}

/// The check values given with the generators.
#[test]
fn the_published_numbers_are_met() {
    fn late<T: Number>() -> T {
        let mut generator = Knuth::new(310_952);
        let mut last = T::default();
        for _ in 0..=2009 {
            last = generator.array(1009)[0];
        }
        last
    }
    assert_eq!(late::<u32>(), 995_235_265);
    assert_eq!(format!("{:.20}", late::<f64>()), "0.36410514377569680455");
}

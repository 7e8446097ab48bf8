//! Straight-line ops turned back into loops.

/// A number: a constant, plus multiples of program ids and of loop variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Affine {
    /// The constant.
    pub constant: i64,
    /// Multiples of program ids.
    pub ids: [i64; 3],
    /// Multiples of loop variables, by number of the loop.
    pub loops: Vec<(u32, i64)>,
}

/// A step of a work-item.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// An op: what is fixed of it, by number, and its numbers.
    Op {
        /// Equal for ops that differ in numbers only.
        shape: u32,
        /// Its numbers.
        numbers: Vec<Affine>,
    },
    /// A loop from 0.
    Loop {
        /// Its number, unique in the work-item.
        id: u32,
        /// Trip count.
        count: u64,
        /// What it repeats.
        body: Vec<Node>,
    },
}

/// Longest repeated block.
const LONGEST: usize = 96;

/// Replaces runs of three or more repetitions, whose numbers grow by a constant, by loops.
pub fn fold(mut nodes: Vec<Node>) -> Vec<Node> {
    let mut next = 0;
    // Every pass that changes something shortens the list.
    loop {
        let before = nodes.len();
        for length in 1..=LONGEST.min(nodes.len() / 3) {
            nodes = fold_blocks(nodes, length, &mut next);
        }
        if nodes.len() == before {
            return nodes;
        }
    }
}

fn fold_blocks(nodes: Vec<Node>, length: usize, next: &mut u32) -> Vec<Node> {
    let mut out = Vec::with_capacity(nodes.len());
    let mut at = 0;
    while at < nodes.len() {
        match repetitions(&nodes, at, length) {
            Some((count, steps)) => {
                let id = *next;
                *next += 1;
                let mut body = nodes.get(at..at + length).unwrap_or_default().to_vec();
                let mut steps = steps.into_iter();
                for node in &mut body {
                    vary(node, id, &mut steps);
                }
                out.push(Node::Loop {
                    id,
                    count: count as u64,
                    body,
                });
                at += count * length;
            }
            None => {
                out.extend(nodes.get(at).cloned());
                at += 1;
            }
        }
    }
    out
}

/// How often the block at `at` is repeated, if three times or more, and by how much its numbers grow.
fn repetitions(nodes: &[Node], at: usize, length: usize) -> Option<(usize, Vec<i64>)> {
    let block = |k: usize| nodes.get(at + k * length..at + (k + 1) * length);
    let (first, second) = (block(0)?, block(1)?);
    let steps = steps(first, second)?;
    let mut count = 2;
    while let (Some(before), Some(after)) = (block(count - 1), block(count))
        && self::steps(before, after).as_ref() == Some(&steps)
    {
        count += 1;
    }
    (count >= 3).then_some((count, steps))
}

/// By how much the numbers of `b` exceed those of `a`, if both are the same otherwise.
fn steps(a: &[Node], b: &[Node]) -> Option<Vec<i64>> {
    let mut out = Vec::new();
    compare(a, b, &mut out).then_some(out)
}

fn compare(a: &[Node], b: &[Node], out: &mut Vec<i64>) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|pair| match pair {
            (
                Node::Op { shape, numbers },
                Node::Op {
                    shape: other,
                    numbers: others,
                },
            ) => {
                shape == other
                    && numbers.len() == others.len()
                    && numbers.iter().zip(others).all(|(x, y)| {
                        let step = y.constant.checked_sub(x.constant);
                        out.extend(step);
                        step.is_some() && x.ids == y.ids && factors(x).eq(factors(y))
                    })
            }
            (
                Node::Loop { count, body, .. },
                Node::Loop {
                    count: other,
                    body: others,
                    ..
                },
            ) => count == other && compare(body, others, out),
            _ => false,
        })
}

/// Loops have other numbers in each repetition; they are opened in the same order.
fn factors(x: &Affine) -> impl Iterator<Item = i64> + '_ {
    x.loops.iter().map(|(_, factor)| *factor)
}

/// Adds the loop's variable to every number of a node.
fn vary(node: &mut Node, id: u32, steps: &mut impl Iterator<Item = i64>) {
    match node {
        Node::Op { numbers, .. } => {
            for number in numbers {
                // Zero too, so that equal numbers have equally many factors.
                number.loops.push((id, steps.next().unwrap_or(0)));
            }
        }
        Node::Loop { body, .. } => {
            for node in body {
                vary(node, id, steps);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(shape: u32, constant: i64) -> Node {
        Node::Op {
            shape,
            numbers: vec![Affine {
                constant,
                ..Affine::default()
            }],
        }
    }

    fn unfold(nodes: &[Node], values: &mut Vec<(u32, i64)>, out: &mut Vec<(u32, i64)>) {
        for node in nodes {
            match node {
                Node::Op { shape, numbers } => {
                    let x = &numbers[0];
                    let value = |id: u32| values.iter().find(|(k, _)| *k == id).unwrap().1;
                    let sum: i64 = x.loops.iter().map(|(id, f)| f * value(*id)).sum();
                    out.push((*shape, x.constant + sum));
                }
                Node::Loop { id, count, body } => {
                    for k in 0..*count as i64 {
                        values.push((*id, k));
                        unfold(body, values, out);
                        values.pop();
                    }
                }
            }
        }
    }

    #[test]
    fn nests_of_loops_come_back() {
        let mut ops = vec![(9, 0)];
        for i in 0..5 {
            ops.push((0, 100 * i));
            for j in 0..4 {
                ops.push((1, 7 * i + 3 * j));
                ops.push((2, -j));
            }
        }
        ops.push((9, 1));
        let nodes: Vec<Node> = ops.iter().map(|(s, c)| op(*s, *c)).collect();
        let folded = fold(nodes);
        assert_eq!(folded.len(), 3, "{folded:#?}");
        let mut back = Vec::new();
        unfold(&folded, &mut Vec::new(), &mut back);
        assert_eq!(back, ops);
    }

    #[test]
    fn what_grows_unevenly_stays() {
        let nodes: Vec<Node> = [0, 1, 3, 6].map(|c| op(0, c)).into();
        assert_eq!(fold(nodes.clone()), nodes);
        let ends = [op(0, i64::MIN), op(0, i64::MAX), op(0, 0)].to_vec();
        assert_eq!(fold(ends.clone()), ends);
    }
}

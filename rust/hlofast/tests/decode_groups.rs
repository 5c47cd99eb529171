//! Replica groups of three generations: what they mean, and what they cost.

use hlofast::ir::Opcode;
use hlofast::ir::decode::*;

fn groups(text: &str) -> ReplicaGroups<'_> {
    match decode(b"replica_groups", Opcode::AllReduce, text.as_bytes()) {
        Ok(AttributeValue::ReplicaGroups(groups)) => groups,
        other => panic!("{text}: {other:?}"),
    }
}

fn expanded(text: &str) -> Vec<Vec<i64>> {
    let groups = groups(text);
    let lists = groups.expand(10_000).unwrap_or_else(|| panic!("{text} cannot be expanded"));
    for (g, list) in lists.iter().enumerate() {
        for (i, device) in list.iter().enumerate() {
            assert_eq!(groups.device(g as u64, i as u64), Some(*device), "{text} {g} {i}");
        }
        assert_eq!(groups.device(g as u64, list.len() as u64), None);
    }
    assert_eq!(groups.group_count(), Some(lists.len() as u64));
    let printed = groups.to_text();
    assert_eq!(
        decode(b"replica_groups", Opcode::AllReduce, &printed),
        Ok(AttributeValue::ReplicaGroups(groups)),
        "{}",
        String::from_utf8_lossy(&printed)
    );
    lists.iter().map(<[i64]>::to_vec).collect()
}

#[test]
fn lists() {
    assert_eq!(expanded("{{0,1},{2,3}}"), [[0, 1], [2, 3]]);
    assert_eq!(expanded("{{0},{1,2}}"), [vec![0], vec![1, 2]]);
    assert_eq!(expanded("{{}}"), [Vec::<i64>::new()]);
    assert_eq!(groups("{{0},{1,2}}").group_size(), None);
    assert_eq!(groups("{{0,1},{2,3}}").group_size(), Some(2));
}

#[test]
fn everyone() {
    let groups = groups("{}");
    assert_eq!(groups, ReplicaGroups::Everyone);
    assert_eq!((groups.group_count(), groups.group_size()), (Some(1), None));
    assert_eq!((groups.device(0, 0), groups.expand(100)), (None, None));
}

#[test]
fn iota() {
    assert_eq!(expanded("[2,4]<=[8]"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(expanded("[4,2] <= [2,4]T(1,0)"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    // arange(12).reshape(2,3,2).transpose(1,2,0).reshape(3,4)
    assert_eq!(expanded("[3,4]<=[2,3,2]T(1,2,0)"), [[0, 6, 1, 7], [2, 8, 3, 9], [4, 10, 5, 11]]);
}

#[test]
fn iota_of_any_size_costs_nothing() {
    let groups = groups("[1000000000,8]<=[8000000000]");
    assert_eq!((groups.group_count(), groups.group_size()), (Some(1_000_000_000), Some(8)));
    assert_eq!(groups.device(999_999_999, 7), Some(7_999_999_999));
    assert_eq!(groups.expand(1_000_000), None);
    // No devices, but so many empty groups that listing them is out of the question.
    assert_eq!(self::groups("[1000000000000,0]<=[0]").expand(1000), None);
}

#[test]
fn iota_that_does_not_fit_has_no_devices() {
    // XLA's parser takes these.
    for text in [
        "[2,4]<=[4]",
        "[2,4]<=[2,4]T(0)",
        "[2,4]<=[2,4]T(0,0)",
        "[-2,-4]<=[8]",
        "[2,4]<=[-8]",
        "[4000000000000,4000000000000]<=[4000000000000,4000000000000]T(0,1)",
    ] {
        let groups = groups(text);
        assert_eq!((groups.device(0, 0), groups.expand(1000)), (None, None), "{text}");
    }
    for bad in [
        "[2]<=[2]",
        "[1,2,4]<=[8]",
        "[2,4]<=[2,4]",
        "[2,4]<=[2,4]T(0,2)",
        "[2,4]",
        "{0,1}",
        "{{0,1}",
    ] {
        let read = decode(b"replica_groups", Opcode::AllReduce, bad.as_bytes());
        assert!(read.is_err(), "{bad}: {read:?}");
    }
}

#[test]
fn mesh() {
    assert_eq!(expanded("mesh['a'=2,'b'=3] {'b'}"), [[0, 1, 2], [3, 4, 5]]);
    assert_eq!(expanded("mesh['a'=2,'b'=3] {'a'}"), [[0, 3], [1, 4], [2, 5]]);
    // Whatever the order they are listed in, axes are walked in mesh order.
    assert_eq!(expanded("mesh['a'=2,'b'=2] {'b','a'}"), [[0, 1, 2, 3]]);
    assert_eq!(expanded("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {\"b\"}"), [[0, 2], [1, 3]]);
    assert_eq!(expanded("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)), {'b'}"), [[0, 2], [1, 3]]);
    // An axis may be named by its number.
    assert_eq!(expanded("mesh['a'=2,'b'=2] {'1'}"), [[0, 1], [2, 3]]);
}

#[test]
fn parts_of_mesh_axes() {
    // 8 = 2 x 2 x 2: the middle part.
    assert_eq!(expanded("mesh['a'=8] {'a':(2)2}"), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(expanded("mesh['a'=8] {'a':(1)2, 'a':(4)2}"), [[0, 1, 4, 5], [2, 3, 6, 7]]);
    assert_eq!(expanded("mesh['a'=8] {'a':(4)2, 'a':(1)2}"), [[0, 4, 1, 5], [2, 6, 3, 7]]);
}

#[test]
fn meshes_that_cannot_be_resolved_stay_data() {
    for text in ["mesh['a'=8] {'z'}", "mesh['a'=8] {'a':(3)2}", "mesh['a'=8] {'a':(1)4,'a':(2)2}"] {
        let groups = groups(text);
        assert_eq!((groups.device(0, 0), groups.expand(1000)), (None, None), "{text}");
    }
    assert_eq!(groups("maximal_mesh[device_id=3] {}").expand(10).map(|l| l.items), Some(vec![3]));
    assert_eq!(
        groups("mesh['a'=9000000000,'b'=9000000000,'c'=9000000000] {'a'}").group_count(),
        None
    );
}

#[test]
fn arithmetic_agrees_with_a_written_out_transposition() {
    for (sizes, permutation) in
        [([2usize, 3, 4], [2usize, 0, 1]), ([4, 1, 5], [1, 2, 0]), ([3, 2, 2], [0, 2, 1])]
    {
        let mut expected = Vec::new();
        let [p0, p1, p2] = permutation;
        let strides = [sizes[1] * sizes[2], sizes[2], 1];
        for i in 0..sizes[p0] {
            for j in 0..sizes[p1] {
                for k in 0..sizes[p2] {
                    expected.push((i * strides[p0] + j * strides[p1] + k * strides[p2]) as i64);
                }
            }
        }
        let [a, b, c] = sizes;
        let text = format!("[1,{}]<=[{a},{b},{c}]T({p0},{p1},{p2})", a * b * c);
        assert_eq!(expanded(&text), [expected], "{text}");
    }
}

#[test]
fn meshes_of_many_axes_resolve() {
    let names: Vec<String> = (0..50_000).map(|i| format!("'a{i}'=1")).collect();
    let axes: Vec<String> = (0..50_000).rev().map(|i| format!("'a{i}'")).collect();
    let text = format!("mesh[{}] {{{}}}", names.join(","), axes.join(","));
    assert_eq!(expanded(&text), [[0]]);
}

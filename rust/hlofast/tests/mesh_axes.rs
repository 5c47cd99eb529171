//! Groups of devices in all spellings map back to the axes of a mesh they were made from.

use hlofast::comms::*;
use hlofast::ir::Opcode;
use hlofast::ir::decode::{AttributeValue, DeviceOrder, Iota, decode};
use proptest::prelude::*;

fn mesh(text: &str) -> Mesh {
    Mesh::parse(text).unwrap()
}

fn groups_in(text: &str, mode: GroupMode, context: &GroupContext) -> DeviceGroups {
    match decode(b"replica_groups", Opcode::AllReduce, text.as_bytes()) {
        Ok(AttributeValue::ReplicaGroups(groups)) => {
            DeviceGroups::new(Some(&groups), mode, context)
        }
        other => panic!("{text}: {other:?}"),
    }
}

fn groups(text: &str) -> DeviceGroups {
    groups_in(text, GroupMode::FlattenedId, &GroupContext::default())
}

fn devices(count: u64) -> GroupContext {
    GroupContext { num_partitions: Some(count), ..GroupContext::default() }
}

fn axes(mesh: &Mesh, text: &str) -> String {
    mesh.match_text(&mesh.axes_of(&groups(text)))
}

#[test]
fn three_spellings_of_two_axes() {
    let mesh = mesh("data=2,model=4");
    for (text, expected) in [
        ("{{0,4},{1,5},{2,6},{3,7}}", "data"),
        ("[4,2]<=[2,4]T(1,0)", "data"),
        ("mesh['x'=2,'y'=4] {'x'}", "data"),
        ("{{3,2,1,0},{7,4,5,6}}", "model"),
        ("[2,4]<=[8]", "model"),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_2'}", "model"),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}", "model"),
        ("{{0,1,2,3,4,5,6,7}}", "data×model"),
        ("[1,8]<=[8]", "data×model"),
        ("{}", "data×model"),
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", ""),
        ("[8,1]<=[8]", ""),
        ("{{0,2},{1,3},{4,6},{5,7}}", "model:(1)2"),
        ("{{0,1},{2,3},{4,5},{6,7}}", "model:(2)2"),
        ("{{0,1,4,5},{2,3,6,7}}", "data×model:(2)2"),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", "model:(2)2"),
        ("{{0,3},{1,2},{4,7},{5,6}}", "no axis subset"),
        ("{{0,1,2},{3,4,5,6,7}}", "no axis subset"),
        ("{{0,1},{2,3}}", "no axis subset"),
    ] {
        assert_eq!(axes(&mesh, text), expected, "{text}");
    }
}

#[test]
fn everything_is_said_apart_from_all_axes_that_have_devices() {
    let mesh = mesh("data=2,model=1");
    let matched = mesh.axes_of(&groups("{{1,0}}"));
    let data = AxisPart { axis: 0, before: 1, size: 2 };
    assert_eq!(matched, AxisMatch::Axes { parts: vec![data], everything: true });
}

#[test]
fn reasons_for_no_axes() {
    let mesh = mesh("data=2,model=4");
    let reason = |text: &str| match mesh.axes_of(&groups(text)) {
        AxisMatch::NoSubset(reason) => reason.to_string(),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(
        reason("{{0,1},{2,3}}"),
        "it names 4 devices, the mesh has 8 (if the program is for one slice of several, the mesh lies on 2 slices)"
    );
    assert_eq!(reason("{{0,1,2},{3,4,5,6,7}}"), "the groups differ in size");
    assert_eq!(reason("{{0,3},{1,2},{4,7},{5,6}}"), "it follows no axes of the mesh");
    assert_eq!(reason("{{0,1,2,3},{4,5,6,8}}"), "the mesh has no device 8");
    assert_eq!(reason("[3,2]<=[8]"), "it names 6 devices, the mesh has 8");
    assert_eq!(reason("[4,2]<=[3,3]T(1,0)"), "malformed: its sizes, axes and devices do not match");
}

#[test]
fn sizes_that_are_no_powers_of_two() {
    let mesh = mesh("a=3,b=4,c=5");
    assert_eq!(axes(&mesh, "[12,5]<=[60]"), "c");
    assert_eq!(axes(&mesh, "[3,20]<=[60]"), "b×c");
    assert_eq!(axes(&mesh, "[4,15]<=[3,4,5]T(1,0,2)"), "a×c");
    assert_eq!(axes(&mesh, "[6,10]<=[60]"), "b:(2)2×c");
    assert_eq!(axes(&mesh, "[10,6]<=[60]"), "no axis subset");
    assert_eq!(axes(&mesh, "[30,2]<=[6,10]T(1,0)"), "b:(1)2");
    assert_eq!(axes(&mesh, "[20,3]<=[6,10]T(1,0)"), "no axis subset");
}

#[test]
fn orders_of_devices() {
    let order = Iota { reshape: vec![2, 4], transpose: vec![1, 0] };
    let mesh = mesh("model=4,data=2").with_device_order(&DeviceOrder::Iota(order)).unwrap();
    assert_eq!(axes(&mesh, "{{0,4},{1,5},{2,6},{3,7}}"), "data");
    assert_eq!(axes(&mesh, "[2,4]<=[8]"), "model");
    assert_eq!((mesh.device(1), mesh.position(4)), (Some(4), Some(1)));

    // A ring through a 2x2x2 cube: it has no iota form.
    let ring = DeviceOrder::List(vec![0, 1, 3, 2, 6, 7, 5, 4]);
    let mesh = Mesh::parse("data=2,model=4").unwrap().with_device_order(&ring).unwrap();
    assert_eq!(axes(&mesh, "{{0,1,3,2},{6,7,5,4}}"), "model");
    assert_eq!(axes(&mesh, "{{0,6},{1,7},{3,5},{2,4}}"), "data");
    assert_eq!(axes(&mesh, "[2,4]<=[8]"), "model");
    assert_eq!(axes(&mesh, "[4,2]<=[2,4]T(1,0)"), "no axis subset");
    let named = "mesh['a'=2,'b'=4], device_ids=(0,1,3,2,6,7,5,4) {'a'}";
    assert_eq!(axes(&mesh, named), "data");
}

#[test]
fn a_billion_devices_cost_nothing() {
    let mesh = mesh("pod=1000,data=1000,model=1000,x=1000000000");
    let all = 1_000_000_000_000_000_000u64;
    assert_eq!(mesh.device_count(), all);
    let text = "[1000000000,1000000000]<=[1000,1000,1000,1000000000]T(3,1,0,2)";
    assert_eq!(axes(&mesh, text), "pod×data×model");
    let text = format!("[{},1000]<=[{all}]", all / 1000);
    assert_eq!(axes(&mesh, &text), "x:(1000000)1000");
    let text = "mesh['a'=1000000,'b'=1000000000000] {'a'}";
    assert_eq!(axes(&mesh, text), "pod×data");
    let big = groups("[1000000000,1000000000]<=[1000000000,1000000000]T(1,0)");
    assert_eq!((big.group_count(), big.group_size()), (Some(1_000_000_000), Some(1_000_000_000)));
    assert_eq!(big.expand(1_000_000), None);
    assert_eq!(big.to_text(), "[1000000000,1000000000]<=[1000000000,1000000000]T(1,0)");
    let uneven = "[333333333333333333,3]<=[999999999999999999]";
    assert_eq!(axes(&mesh, uneven), "no axis subset");
    // Four replicas in irregular groups, each with 10^12 partitions.
    let context = GroupContext {
        replica_count: Some(4),
        num_partitions: Some(1_000_000_000_000),
        device_count: None,
    };
    let replicas = groups_in("{{0,3},{1,2}}", GroupMode::CrossReplica, &context);
    assert_eq!(replicas.device_count(), Some(4_000_000_000_000));
    assert_eq!(replicas.span(2), None);
    let four = Mesh::parse("replica=4,x=1000000000000").unwrap();
    assert_eq!(four.axes_of(&replicas), AxisMatch::NoSubset(Mismatch::TooLarge));
    // Irregular, and too many to compare one by one.
    let odd = Iota { reshape: vec![3, 1 << 40], transpose: vec![1, 0] };
    let odd = Mesh::new(vec![("a".into(), 2), ("b".into(), 3 << 39)])
        .unwrap()
        .with_device_order(&DeviceOrder::Iota(odd))
        .unwrap();
    let text = format!("[2,{}]<=[{}]", 3u64 << 39, 3u64 << 40);
    let matched = odd.axes_of(&groups(&text));
    assert_eq!(matched, AxisMatch::NoSubset(Mismatch::TooLarge));
}

#[test]
fn everyone_by_mode() {
    let both = GroupContext { replica_count: Some(2), num_partitions: Some(4), device_count: None };
    let text = |text: &str, mode| groups_in(text, mode, &both).to_text();
    assert_eq!(text("{}", GroupMode::FlattenedId), "{}");
    assert_eq!(text("{}", GroupMode::CrossReplicaAndPartition), "{}");
    assert_eq!(text("{}", GroupMode::CrossPartition), "[2,4]<=[8]");
    assert_eq!(text("{}", GroupMode::CrossReplica), "[4,2]<=[2,4]T(1,0)");
    assert_eq!(text("{{0},{1}}", GroupMode::CrossReplicaAndPartition), "[2,4]<=[8]");
    assert_eq!(text("{{0,1},{2,3}}", GroupMode::CrossPartition), "[4,2]<=[8]");
    assert_eq!(text("{{0,1}}", GroupMode::CrossReplica), "[4,2]<=[2,4]T(1,0)");
    // Device numbers although the attributes say replicas.
    assert_eq!(text("{{0,1,2,3},{4,5,6,7}}", GroupMode::CrossReplica), "[2,4]<=[8]");
    let odd = groups_in("{{0,3},{1,2}}", GroupMode::CrossPartition, &both);
    assert_eq!(odd.expand(8).unwrap(), [[0, 3], [1, 2], [4, 7], [5, 6]]);
    assert_eq!(
        (odd.group_count(), odd.group_size(), odd.device_count()),
        (Some(4), Some(2), Some(8))
    );
    assert_eq!(groups_in("{}", GroupMode::CrossReplica, &devices(8)).group_size(), Some(1));
}

#[test]
fn a_lone_zero_is_everyone_where_there_are_others() {
    let flat = GroupMode::FlattenedId;
    let mesh = mesh("data=2,model=4");
    let lone = |context| groups_in("{{0}}", flat, &context);
    assert!(lone(devices(8)).is_everyone());
    assert_eq!(lone(devices(8)).group_size(), Some(8));
    let elsewhere = GroupContext { device_count: Some(8), ..GroupContext::default() };
    assert_eq!(mesh.match_text(&mesh.axes_of(&lone(elsewhere))), "data×model");
    assert_eq!(mesh.axes_of(&lone(GroupContext::default())), AxisMatch::Nothing);
    // One replica of eight partitions: a group of one replica covers everything.
    let replica = groups_in("{{0}}", GroupMode::CrossReplica, &devices(8));
    assert_eq!((replica.group_count(), replica.group_size()), (Some(8), Some(1)));
}

#[test]
fn programs_for_one_of_several_slices() {
    let mesh = mesh("data=4,fsdp=8").with_slices(4).unwrap();
    assert_eq!(axes(&mesh, "{{0,1,2,3,4,5,6,7}}"), "fsdp");
    assert_eq!(axes(&mesh, "[4,2]<=[2,4]T(1,0)"), "fsdp:(1)2");
    assert_eq!(axes(&Mesh::parse("data=4,fsdp=8").unwrap(), "[1,8]<=[8]"), "no axis subset");
}

#[test]
fn hosts_and_slices() {
    let mesh = mesh("replica=2,data=4,model=8").with_slices(2).unwrap().with_hosts(16).unwrap();
    let span = |blocks, per_block| Some(GroupSpan { blocks, per_block });
    assert_eq!(mesh.axis_span(0), AxisSpan { hosts: span(2, 1), slices: span(2, 1) });
    assert_eq!(mesh.axis_span(1), AxisSpan { hosts: span(4, 1), slices: span(1, 4) });
    assert_eq!(mesh.axis_span(2), AxisSpan { hosts: span(2, 4), slices: span(1, 8) });
    let all = groups("[1,64]<=[64]");
    assert_eq!((mesh.host_span(&all), mesh.slice_span(&all)), (span(16, 4), span(2, 32)));
    let odd = groups("{{0,3},{1,2}}");
    assert_eq!((odd.span(2), odd.span(1)), (span(2, 1), span(2, 1)));
    assert_eq!(groups("{{0,1},{2,3},{4,5},{6,7}}").span(3), None);
    assert_eq!(Mesh::parse("a=4").unwrap().axis_span(0), AxisSpan::default());
}

#[test]
fn meshes_that_cannot_be() {
    let message = |text: &str| Mesh::parse(text).unwrap_err().to_string();
    assert_eq!(message("a=2,a=4"), "mesh axis \"a\" is given twice");
    assert_eq!(message("a=0"), "mesh axis \"a\" has size 0; sizes must be at least 1");
    assert_eq!(message("a=-2"), "mesh axis \"a\" has size -2; sizes must be at least 1");
    assert_eq!(message("a=x"), "the size of mesh axis \"a\" is not an integer: \"x\"");
    assert_eq!(message("2,4"), "expected NAME=SIZE,NAME=SIZE,... for a mesh, not \"2,4\"");
    assert_eq!(message(""), "expected NAME=SIZE,NAME=SIZE,... for a mesh, not \"\"");
    let big = "a=4294967296,b=4294967296";
    assert_eq!(message(big), "the mesh has more devices than 64 bits can count");
    let order = |list: &[i64]| {
        let order = DeviceOrder::List(list.to_vec());
        Mesh::parse("a=4").unwrap().with_device_order(&order).unwrap_err().to_string()
    };
    assert_eq!(order(&[0, 1]), "the device order has 2 devices, the mesh 4");
    assert_eq!(order(&[0, 1, 1, 2]), "device 1 occurs twice in the device order");
    assert_eq!(order(&[0, 1, 2, 4]), "device 4 of the device order is not one of 4 devices");
    assert_eq!(order(&[0, 1, 2, -1]), "device -1 of the device order is not one of 4 devices");
    let twice = DeviceOrder::Iota(Iota { reshape: vec![2, 2], transpose: vec![0, 0] });
    let error = Mesh::parse("a=4").unwrap().with_device_order(&twice).unwrap_err().to_string();
    assert_eq!(error, "the device order is not a permutation of the devices");
    let error = Mesh::parse("a=4").unwrap().with_hosts(3).unwrap_err().to_string();
    assert_eq!(error, "4 devices cannot be spread evenly over 3 hosts");
    let error = Mesh::parse("a=4").unwrap().with_hosts(2).unwrap().with_slices(4).unwrap_err();
    assert_eq!(error.to_string(), "2 hosts cannot be spread evenly over 4 slices");
}

fn permute(mesh: &Mesh, pairs: &[(i64, i64)]) -> String {
    let matched = mesh.permute_of(pairs, GroupMode::CrossPartition, &devices(mesh.device_count()));
    let complete = matches!(matched, PermuteMatch::Shift { complete: true, .. });
    let end = if complete { " complete" } else { "" };
    mesh.permute_text(&matched) + end
}

#[test]
fn permutes() {
    let mesh = mesh("data=2,model=4");
    let ring = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)];
    assert_eq!(permute(&mesh, &ring), "model +1 complete");
    let back: Vec<(i64, i64)> = ring.iter().map(|(s, t)| (*t, *s)).collect();
    assert_eq!(permute(&mesh, &back), "model -1 complete");
    let open = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)];
    assert_eq!(permute(&mesh, &open), "model +1 without wraparound complete");
    assert_eq!(permute(&mesh, &[(1, 2), (5, 6)]), "model +1 without wraparound");
    let two = [(0, 2), (1, 3), (2, 0), (3, 1), (4, 6), (5, 7), (6, 4), (7, 5)];
    assert_eq!(permute(&mesh, &two), "model +2 complete");
    let swap = [(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4), (6, 7), (7, 6)];
    assert_eq!(permute(&mesh, &swap), "model:(2)2 +1 complete");
    let data: Vec<(i64, i64)> = (0..8).map(|d| (d, (d + 4) % 8)).collect();
    assert_eq!(permute(&mesh, &data), "data +1 complete");
    let all: Vec<(i64, i64)> = (0..8).map(|d| (d, (d + 1) % 8)).collect();
    assert_eq!(permute(&mesh, &all), "data×model +1 complete");
    let transposed = [(0, 0), (4, 2), (2, 4), (6, 6), (1, 1), (5, 3), (3, 5), (7, 7)];
    assert_eq!(permute(&mesh, &transposed), "data×model:(1)2");
    let inside = [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 6), (6, 5), (7, 7)];
    assert_eq!(permute(&mesh, &inside), "model");
    assert_eq!(permute(&mesh, &[(4, 0), (5, 1)]), "data -1 without wraparound");
    assert_eq!(permute(&mesh, &[(0, 2), (1, 3)]), "model +2 without wraparound");
    assert_eq!(permute(&mesh, &[(2, 0), (3, 1)]), "model -2 without wraparound");
    assert_eq!(permute(&mesh, &[(0, 0), (3, 3)]), "");
    assert_eq!(permute(&mesh, &[]), "");
    assert_eq!(permute(&mesh, &[(0, 8)]), "no axis subset");
    assert_eq!(permute(&mesh, &[(i64::MIN, 0)]), "no axis subset");
    let huge = Mesh::parse("a=1000000007,b=1000000009").unwrap();
    assert_eq!(permute(&huge, &[(0, 1), (5, 6)]), "b +1 without wraparound");
}

/// A mesh, parts of its axes, and the groups of devices that differ along them, by counting.
#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<u64>,
    parts: Vec<AxisPart>,
    order: Order,
    shuffle: u64,
}

#[derive(Clone, Debug)]
enum Order {
    Plain,
    Axes(Vec<u32>),
    List(Vec<i64>),
}

fn case() -> impl Strategy<Value = Case> {
    let sizes = prop::collection::vec(prop::sample::select(vec![1u64, 2, 2, 3, 4, 6, 8]), 1..5);
    sizes.prop_flat_map(|sizes| {
        let total: u64 = sizes.iter().product();
        let rank = sizes.len();
        let cuts = prop::collection::vec((0u8..3, any::<u64>(), any::<u64>()), rank);
        let order = prop_oneof![
            Just(Order::Plain),
            Just((0..rank as u32).collect::<Vec<_>>()).prop_shuffle().prop_map(Order::Axes),
            Just((0..total as i64).collect::<Vec<_>>()).prop_shuffle().prop_map(Order::List),
        ];
        (Just(sizes), cuts, order, any::<u64>()).prop_map(|(sizes, cuts, order, shuffle)| {
            let mut parts = Vec::new();
            for (axis, (size, (kind, a, b))) in sizes.iter().zip(cuts).enumerate() {
                let divisors =
                    |n: u64| (1..=n).filter(|d| n.is_multiple_of(*d)).collect::<Vec<_>>();
                let pick = |list: Vec<u64>, at: u64| list[(at % list.len() as u64) as usize];
                match kind {
                    0 => {}
                    1 => parts.push(AxisPart { axis, before: 1, size: *size }),
                    _ => {
                        let before = pick(divisors(*size), a);
                        let part = pick(divisors(size / before), b);
                        parts.push(AxisPart { axis, before, size: part });
                    }
                }
            }
            parts.retain(|part| part.size > 1);
            Case { sizes, parts, order, shuffle }
        })
    })
}

impl Case {
    fn mesh(&self) -> Mesh {
        let axes = self.sizes.iter().enumerate().map(|(i, size)| (format!("x{i}"), *size as i64));
        let mesh = Mesh::new(axes.collect()).unwrap();
        match self.device_order() {
            Some(order) => mesh.with_device_order(&order).unwrap(),
            None => mesh,
        }
    }

    /// Mesh axis i runs along axis transpose[i] of the devices in row-major order.
    fn device_order(&self) -> Option<DeviceOrder> {
        match &self.order {
            Order::Plain => None,
            Order::Axes(transpose) => {
                let mut reshape = vec![0i64; self.sizes.len()];
                for (size, axis) in self.sizes.iter().zip(transpose) {
                    reshape[*axis as usize] = *size as i64;
                }
                Some(DeviceOrder::Iota(Iota { reshape, transpose: transpose.clone() }))
            }
            Order::List(list) => Some(DeviceOrder::List(list.clone())),
        }
    }

    /// By counting through all positions.
    fn groups(&self) -> Vec<Vec<u64>> {
        let mesh = self.mesh();
        let mut groups = std::collections::BTreeMap::<Vec<u64>, Vec<u64>>::new();
        for position in 0..mesh.device_count() {
            let mut rest = position;
            let mut fixed = Vec::new();
            for (axis, size) in self.sizes.iter().enumerate().rev() {
                let at = rest % size;
                rest /= size;
                match self.parts.iter().find(|part| part.axis == axis) {
                    Some(part) => {
                        let below = size / part.before / part.size;
                        fixed.extend([at % below, at / below / part.size]);
                    }
                    None => fixed.push(at),
                }
            }
            groups.entry(fixed).or_default().push(mesh.device(position).unwrap());
        }
        groups.into_values().collect()
    }

    /// The groups as lists, in an order that depends on `shuffle`.
    fn lists(&self) -> String {
        let key = |n: u64| n.wrapping_mul(self.shuffle | 1).rotate_left(29).wrapping_mul(31);
        let mut groups = self.groups();
        for group in &mut groups {
            group.sort_by_key(|device| key(*device));
        }
        groups.sort_by_key(|group| key(group[0]));
        let list = |group: &Vec<u64>| {
            let words: Vec<String> = group.iter().map(u64::to_string).collect();
            format!("{{{}}}", words.join(","))
        };
        let lists: Vec<String> = groups.iter().map(list).collect();
        format!("{{{}}}", lists.join(","))
    }

    /// The groups as a mesh with named axes.
    fn named(&self) -> String {
        let axes = self.sizes.iter().enumerate().map(|(i, size)| (format!("n{i}"), *size));
        let axes: Vec<String> = axes.map(|(name, size)| format!("'{name}'={size}")).collect();
        let join = |list: Vec<String>| list.join(",");
        let order = match self.device_order() {
            None => String::new(),
            Some(DeviceOrder::Iota(iota)) => {
                let reshape = join(iota.reshape.iter().map(i64::to_string).collect());
                let transpose = join(iota.transpose.iter().map(u32::to_string).collect());
                format!(", device_ids=([{reshape}]T({transpose}))")
            }
            Some(DeviceOrder::List(list)) => {
                format!(", device_ids=({})", join(list.iter().map(i64::to_string).collect()))
            }
        };
        let part = |part: &AxisPart| {
            let whole = part.size == self.sizes[part.axis];
            let name = format!("'n{}'", part.axis);
            if whole { name } else { format!("{name}:({}){}", part.before, part.size) }
        };
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        format!("mesh[{}]{order} {{{}}}", axes.join(","), parts.join(","))
    }

    /// The groups in iota form; only for meshes in row-major order.
    fn iota(&self) -> Option<String> {
        let Order::Plain = self.order else { return None };
        let (mut sizes, mut within, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, size) in self.sizes.iter().enumerate() {
            let part = self.parts.iter().find(|part| part.axis == axis);
            let (before, part) = part.map_or((1, 1), |part| (part.before, part.size));
            rest.push(sizes.len());
            sizes.push(before);
            within.push(sizes.len());
            sizes.push(part);
            rest.push(sizes.len());
            sizes.push(size / before / part);
        }
        let group: u64 = self.parts.iter().map(|part| part.size).product();
        let total: u64 = sizes.iter().product();
        let join = |list: Vec<String>| list.join(",");
        let reshape = join(sizes.iter().map(u64::to_string).collect());
        let transpose = join(rest.iter().chain(&within).map(usize::to_string).collect());
        Some(format!("[{},{group}]<=[{reshape}]T({transpose})", total / group))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn every_spelling_maps_back(case in case()) {
        let mesh = case.mesh();
        let everything: u64 = case.parts.iter().map(|part| part.size).product();
        let expected = if case.parts.is_empty() {
            AxisMatch::Nothing
        } else {
            let everything = everything == mesh.device_count();
            AxisMatch::Axes { parts: case.parts.clone(), everything }
        };
        let mut spellings = vec![case.lists(), case.named()];
        spellings.extend(case.iota());
        let mut sorted = case.groups();
        for group in &mut sorted {
            group.sort_unstable();
        }
        sorted.sort_unstable();
        let first = groups(&spellings[0]);
        let along = mesh.groups_along(&case.parts).unwrap();
        prop_assert_eq!(along.expand(100_000).unwrap(), sorted.clone());
        for text in &spellings {
            let groups = groups(text);
            prop_assert_eq!(groups.expand(100_000).unwrap(), sorted.clone(), "{}", text);
            prop_assert_eq!(mesh.axes_of(&groups), expected.clone(), "{}", text);
            if !matches!(case.order, Order::List(_)) {
                prop_assert_eq!(&groups, &first, "{}", text);
                prop_assert_eq!(groups.to_text(), first.to_text(), "{}", text);
            }
            // The printed text denotes the same groups.
            if groups.device_count() > Some(1) {
                let again = groups_in(&groups.to_text(), GroupMode::FlattenedId, &devices(mesh.device_count()));
                prop_assert_eq!(again.expand(100_000).unwrap(), sorted.clone(), "{}", groups.to_text());
            }
        }
    }

    /// Groups on a small mesh map to axes exactly if some subset of axis parts produces them;
    /// checked against every subset.
    #[test]
    fn exactly_the_groups_along_axes_are_mapped(
        order in Just((0..8i64).collect::<Vec<_>>()).prop_shuffle(),
        size in prop::sample::select(vec![1usize, 2, 4, 8]),
        plain in any::<bool>(),
    ) {
        let mesh = Mesh::parse("a=2,b=4").unwrap();
        let mut order = order;
        if plain {
            order.sort_unstable_by_key(|d| (d % 4, d / 4));
        }
        let lists: Vec<String> = order.chunks(size).map(|group| {
            let words: Vec<String> = group.iter().map(i64::to_string).collect();
            format!("{{{}}}", words.join(","))
        }).collect();
        let groups = groups(&format!("{{{}}}", lists.join(",")));
        let expanded = groups.expand(8).unwrap();
        let part = |axis, before, size| AxisPart { axis, before, size };
        let b = [vec![], vec![part(1, 1, 2)], vec![part(1, 2, 2)], vec![part(1, 1, 4)]];
        let a = [vec![], vec![part(0, 1, 2)]];
        let mut expected = None;
        for parts in a.iter().flat_map(|a| b.iter().map(move |b| [a.clone(), b.clone()].concat())) {
            if mesh.groups_along(&parts).unwrap().expand(8).unwrap() == expanded {
                expected = Some(parts);
            }
        }
        match (mesh.axes_of(&groups), expected) {
            (AxisMatch::Nothing, Some(parts)) => prop_assert!(parts.is_empty()),
            (AxisMatch::Axes { parts, .. }, Some(expected)) => prop_assert_eq!(parts, expected),
            (AxisMatch::NoSubset(_), None) => {}
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn shifts_map_back(case in case(), at in any::<prop::sample::Index>(), by in any::<prop::sample::Index>()) {
        let mesh = case.mesh();
        let long: Vec<usize> = (0..case.sizes.len()).filter(|i| case.sizes[*i] > 1).collect();
        prop_assume!(!long.is_empty());
        let axis = long[at.index(long.len())];
        let (size, stride) = (case.sizes[axis], mesh.stride(axis).unwrap());
        let by = 1 + by.index(size as usize - 1) as u64;
        let pairs: Vec<(i64, i64)> = (0..mesh.device_count()).map(|position| {
            let coordinate = position / stride % size;
            let target = position - coordinate * stride + (coordinate + by) % size * stride;
            (mesh.device(position).unwrap() as i64, mesh.device(target).unwrap() as i64)
        }).collect();
        let matched = mesh.permute_of(&pairs, GroupMode::CrossPartition, &devices(mesh.device_count()));
        let signed = if by > size / 2 { by as i64 - size as i64 } else { by as i64 };
        let parts = vec![AxisPart { axis, before: 1, size }];
        prop_assert_eq!(
            matched,
            PermuteMatch::Shift { parts, by: signed, wraps: true, complete: true }
        );
    }

    /// Numbers of any size in the text take no extra time and cause no failure.
    #[test]
    fn hostile_groups(
        lead in prop::collection::vec(any::<i64>(), 2),
        reshape in prop::collection::vec(prop_oneof![any::<i64>(), 0i64..9], 1..5),
        hosts in any::<u64>(),
    ) {
        let mut transpose: Vec<usize> = (0..reshape.len()).collect();
        transpose.reverse();
        let join = |list: Vec<String>| list.join(",");
        let sizes = join(reshape.iter().map(i64::to_string).collect());
        let transpose = join(transpose.iter().map(usize::to_string).collect());
        let text = format!("[{},{}]<=[{sizes}]T({transpose})", lead[0], lead[1]);
        let mesh = Mesh::parse("a=2,b=4").unwrap();
        for context in [GroupContext::default(), devices(u64::MAX), devices(8)] {
            for mode in [GroupMode::CrossReplica, GroupMode::CrossReplicaAndPartition, GroupMode::FlattenedId] {
                let groups = groups_in(&text, mode, &context);
                let _ = (mesh.axes_of(&groups), groups.to_text(), groups.span(hosts), groups.expand(1000));
                let _ = (groups.group_count(), groups.device_count(), groups.is_everyone());
            }
        }
    }
}

//! Shardings of all generations as partition specs: the same tiles on the same devices.

use hlofast::comms::{AxisPart, Mesh, PartitionSpec};
use hlofast::ir::Opcode;
use hlofast::ir::decode::{AttributeValue, DeviceOrder, Iota, Sharding, decode};
use proptest::prelude::*;

fn sharding(text: &str) -> Sharding<'_> {
    match decode(b"sharding", Opcode::Add, text.as_bytes()) {
        Ok(AttributeValue::Sharding(sharding)) => sharding,
        other => panic!("{text}: {other:?}"),
    }
}

fn spec(mesh: &Mesh, text: &str) -> String {
    match mesh.partition_spec(&sharding(text).leaves()[0]) {
        Ok(spec) => mesh.spec_text(&spec),
        Err(reason) => reason.to_string(),
    }
}

#[test]
fn generations_agree() {
    let mesh = Mesh::parse("data=2,model=4").unwrap();
    for (text, expected) in [
        ("{replicated}", "P()"),
        ("{devices=[2,4]<=[8]}", "P('data', 'model')"),
        ("{devices=[2,4]0,1,2,3,4,5,6,7}", "P('data', 'model')"),
        ("{mesh['data'=2,'model'=4], [{'data'}, {'model'}]}", "P('data', 'model')"),
        ("{mesh['a'=2,'b'=4], [{'a'}, {'b'}]}", "P('data', 'model')"),
        ("{mesh['b'=4,'a'=2], device_ids=([2,4]T(1,0)), [{'a'}, {'b'}]}", "P('data', 'model')"),
        ("{devices=[4,2]<=[2,4]T(1,0)}", "P('model', 'data')"),
        ("{devices=[8,1]<=[8]}", "P(('data', 'model'), None)"),
        ("{devices=[8,1]<=[2,4]T(1,0)}", "P(('model', 'data'), None)"),
        ("{mesh['data'=2,'model'=4], [{'model','data'}, {}]}", "P(('model', 'data'), None)"),
        ("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}", "P('model', None)"),
        ("{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}", "P(None, 'model')"),
        ("{devices=[1,4,2]4,0,1,5,6,2,3,7 last_tile_dim_replicate}", "P(None, 'model')"),
        ("{devices=[2,2,2]<=[2,4]T(1,0) last_tile_dim_replicate}", "P('model:(1)2', 'model:(2)2')"),
        ("{mesh['data'=2,'model'=4], [{'model':(2)2}, {?}]}", "P('model:(2)2', ?)"),
        ("{mesh['data'=2,'model'=4], [{'data', ?}]}", "P(('data', ?))"),
        ("{devices=[2,1,4]<=[8] last_tile_dims={manual}}", "P('data', None, manual={'model'})"),
        ("{devices=[2,4]<=[8] last_tile_dims={unreduced}}", "P('data', unreduced={'model'})"),
        (
            "{mesh['data'=2,'model'=4], [{}], unreduced=max{'model'}, manual={'data'}}",
            "P(None, unreduced=max{'model'}, manual={'data'})",
        ),
        ("{manual}", "P(manual={'data', 'model'})"),
        ("{unreduced}", "P(unreduced={'data', 'model'})"),
        ("{mesh['data'=2,'model'=4], replicated}", "P()"),
        ("{mesh[], [{}, {}]}", "P(None, None)"),
        ("{mesh['data'=2,'model'=4], manual}", "P(manual={'data', 'model'})"),
    ] {
        assert_eq!(spec(&mesh, text), expected, "{text}");
    }
}

#[test]
fn what_has_no_spec_says_why() {
    let mesh = Mesh::parse("data=2,model=4").unwrap();
    for (text, expected) in [
        ("{unknown}", "the sharding is not known yet"),
        ("{maximal device=3}", "it names device 3 only"),
        ("{maximal_mesh[device_id=5]}", "it names device 5 only"),
        (
            "{devices=[4]<=[4]}",
            "it names 4 devices, the mesh has 8 (if the program is for one slice of several, the mesh lies on 2 slices)",
        ),
        ("{devices=[8]0,1,3,2,4,5,6,7}", "it follows no axes of the mesh"),
        ("{devices=[8]0,1,3,2,4,5,6,9}", "the mesh has no device 9"),
        ("{devices=[8]<=[4]}", "malformed: its sizes, axes and devices do not match"),
        ("{devices=[-2,-4]<=[8]}", "malformed: its sizes, axes and devices do not match"),
        (
            "{devices=[1000000000,1000000000]<=[1000000000000000000]}",
            "it names 1000000000000000000 devices, the mesh has 8",
        ),
        ("{mesh['a'=8], [{'b'}]}", "malformed: its sizes, axes and devices do not match"),
        ("{mesh['a'=8], [{'a':(3)2}]}", "malformed: its sizes, axes and devices do not match"),
    ] {
        assert_eq!(spec(&mesh, text), expected, "{text}");
    }
    let sliced = Mesh::parse("data=4,fsdp=8").unwrap().with_slices(4).unwrap();
    assert_eq!(spec(&sliced, "{devices=[8]<=[8]}"), "P('fsdp')");
}

/// What a part of an axis is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Replicated,
    Dimension(usize),
    Manual,
}

const RANK: usize = 3;

#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<u64>,
    /// (part, use) in order of significance within each dimension.
    uses: Vec<(AxisPart, Use)>,
    /// The order of the devices; None = 0, 1, 2, ...
    order: Option<Vec<i64>>,
    is_listed: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let sizes = prop::collection::vec(prop::sample::select(vec![1u64, 2, 3, 4, 6, 8]), 1..4);
    sizes.prop_flat_map(|sizes| {
        let total: i64 = sizes.iter().product::<u64>() as i64;
        let mut parts = Vec::new();
        for (axis, size) in sizes.iter().enumerate() {
            let before = (2..=*size).find(|d| size.is_multiple_of(*d)).unwrap_or(1);
            for part in [
                AxisPart { axis, before: 1, size: before },
                AxisPart { axis, before, size: size / before },
            ] {
                if part.size > 1 {
                    parts.push(part);
                }
            }
        }
        let place = prop_oneof![
            Just(Use::Replicated),
            (0..RANK).prop_map(Use::Dimension),
            (0..RANK).prop_map(Use::Dimension),
            Just(Use::Manual),
        ];
        let places = prop::collection::vec(place, parts.len());
        let order = prop::option::of(Just((0..total).collect::<Vec<_>>()).prop_shuffle());
        (Just(sizes), Just(parts).prop_shuffle(), places, order, any::<bool>()).prop_map(
            |(sizes, parts, places, order, is_listed)| {
                let uses = parts.into_iter().zip(places).collect();
                Case { sizes, uses, order, is_listed }
            },
        )
    })
}

impl Case {
    fn mesh(&self) -> Mesh {
        let axes = self.sizes.iter().enumerate().map(|(i, size)| (format!("x{i}"), *size as i64));
        let mesh = Mesh::new(axes.collect()).unwrap();
        match &self.order {
            Some(list) => mesh.with_device_order(&DeviceOrder::List(list.clone())).unwrap(),
            None => mesh,
        }
    }

    fn used(&self, place: Use) -> Vec<AxisPart> {
        self.uses.iter().filter(|(_, other)| *other == place).map(|(part, _)| *part).collect()
    }

    /// Coordinate along `parts` taken as one axis of the device at `position`.
    fn coordinate(&self, parts: &[AxisPart], position: u64) -> u64 {
        parts.iter().fold(0, |number, part| {
            let stride: u64 = self.sizes[part.axis + 1..].iter().product();
            let size = self.sizes[part.axis];
            let at = position / stride % size / (size / part.before / part.size) % part.size;
            number * part.size + at
        })
    }

    /// The sharding as tiles on a list of devices, or on an iota if the mesh is in order.
    fn tiles(&self) -> String {
        let mut kinds: Vec<Use> = (0..RANK).map(Use::Dimension).collect();
        kinds.extend([Use::Manual, Use::Replicated]);
        let dimensions: Vec<Vec<AxisPart>> = kinds.iter().map(|kind| self.used(*kind)).collect();
        let size = |parts: &Vec<AxisPart>| parts.iter().map(|part| part.size).product::<u64>();
        let sizes: Vec<u64> = dimensions.iter().map(size).collect();
        let words = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let head = format!("devices=[{}]", words(&sizes));
        let end = "last_tile_dims={manual, replicated}";
        if self.order.is_none() && !self.is_listed {
            let mut reshape = Vec::new();
            let mut place = std::collections::HashMap::new();
            let mut all: Vec<AxisPart> = dimensions.iter().flatten().copied().collect();
            all.sort_unstable();
            for part in &all {
                place.insert(*part, reshape.len() as u64);
                reshape.push(part.size);
            }
            let transpose: Vec<u64> = dimensions.iter().flatten().map(|part| place[part]).collect();
            if reshape.is_empty() {
                return format!("{{{head}<=[1] {end}}}");
            }
            return format!("{{{head}<=[{}]T({}) {end}}}", words(&reshape), words(&transpose));
        }
        let mesh = self.mesh();
        let mut devices = vec![0u64; mesh.device_count() as usize];
        for position in 0..mesh.device_count() {
            let index = dimensions
                .iter()
                .zip(&sizes)
                .fold(0, |index, (parts, size)| index * size + self.coordinate(parts, position));
            devices[index as usize] = mesh.device(position).unwrap();
        }
        format!("{{{head}{} {end}}}", words(&devices))
    }

    fn named(&self) -> String {
        let axes: Vec<String> =
            self.sizes.iter().enumerate().map(|(i, size)| format!("'n{i}'={size}")).collect();
        let part = |part: &AxisPart| match (part.before, part.size) {
            (1, size) if size == self.sizes[part.axis] => format!("'n{}'", part.axis),
            (before, size) => format!("'n{}':({before}){size}", part.axis),
        };
        let list = |place| self.used(place).iter().map(part).collect::<Vec<_>>().join(", ");
        let dimensions: Vec<String> =
            (0..RANK).map(|i| format!("{{{}}}", list(Use::Dimension(i)))).collect();
        let order = self.order.as_ref().map_or(String::new(), |order| {
            let devices: Vec<String> = order.iter().map(i64::to_string).collect();
            format!(", device_ids=({})", devices.join(","))
        });
        let manual = list(Use::Manual);
        format!(
            "{{mesh[{}]{order}, [{}], manual={{{manual}}}}}",
            axes.join(","),
            dimensions.join(", ")
        )
    }

    fn check(&self, spec: &PartitionSpec, text: &str) -> Result<(), TestCaseError> {
        prop_assert_eq!(spec.dimensions.len(), RANK, "{}", text);
        for position in 0..self.sizes.iter().product() {
            for (i, dimension) in spec.dimensions.iter().enumerate() {
                let expected = self.coordinate(&self.used(Use::Dimension(i)), position);
                let coordinate = self.coordinate(&dimension.axes, position);
                prop_assert_eq!(coordinate, expected, "{} at {}", text, position);
            }
        }
        let size = |parts: &[AxisPart]| parts.iter().map(|part| part.size).product::<u64>();
        prop_assert_eq!(size(&spec.manual), size(&self.used(Use::Manual)), "{}", text);
        let mut all: Vec<AxisPart> =
            spec.dimensions.iter().flat_map(|dimension| dimension.axes.clone()).collect();
        all.extend(&spec.manual);
        let axes: Vec<u64> = self.sizes.clone();
        prop_assert!(
            all.iter().all(|part| axes[part.axis].is_multiple_of(part.before * part.size))
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn tiles_and_names_give_the_same_tiles(case in case()) {
        let mesh = case.mesh();
        for text in [case.tiles(), case.named()] {
            let sharding = sharding(&text);
            let spec = mesh.partition_spec(&sharding.leaves()[0]);
            prop_assert!(spec.is_ok(), "{}: {:?}", text, spec);
            case.check(&spec.unwrap(), &text)?;
        }
    }

    /// Numbers of any size take no extra time and cause no failure.
    #[test]
    fn hostile_tiles(
        tiles in prop::collection::vec(prop_oneof![any::<i64>(), 0i64..9], 1..5),
        reshape in prop::collection::vec(prop_oneof![any::<i64>(), 0i64..9], 1..5),
        part in (any::<i64>(), any::<i64>(), any::<i64>()),
    ) {
        let words = |list: &[i64]| list.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let transpose: Vec<i64> = (0..reshape.len() as i64).rev().collect();
        let text = format!("{{devices=[{}]<=[{}]T({})}}", words(&tiles), words(&reshape), words(&transpose));
        let order = Iota { reshape: vec![2, 4], transpose: vec![1, 0] };
        let (before, size, full) = part;
        let full = full.unsigned_abs() >> 1;
        let named = format!("{{mesh['a'={full},'b'=8], [{{'a':({before}){size}}}, {{'b'}}]}}");
        let mesh = Mesh::parse("a=2,b=4").unwrap();
        let turned = mesh.clone().with_device_order(&DeviceOrder::Iota(order)).unwrap();
        let ring = DeviceOrder::List(vec![0, 1, 3, 2, 6, 7, 5, 4]);
        let listed = mesh.clone().with_device_order(&ring).unwrap();
        for mesh in [mesh, turned, listed] {
            for text in [&text, &named] {
                let _ = spec(&mesh, text);
            }
        }
    }
}

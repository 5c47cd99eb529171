//! The share of one device in modules before partitioning.

use hlofast::shares::{Shares, Source};
use hlofast::text::Source as Text;
use hlofast::{Analyses, Options, parse};

fn shares(text: &str) -> Option<Shares> {
    let module = parse(Text::from_slice(text.as_bytes()), &Options::default()).unwrap();
    Analyses::new(&module).shares().cloned()
}

fn module(body: &str) -> String {
    format!("HloModule m, num_partitions=8\n\nENTRY e {{\n{body}}}\n")
}

fn bytes(arrays: &[hlofast::shares::Array]) -> Vec<(i64, i64, Source)> {
    let each = arrays.iter().map(|array| array.bytes);
    each.map(|bytes| (bytes.whole, bytes.device, bytes.source)).collect()
}

/// Weights split along the axis that splits the batch: it is gathered, or the batch is, and either
/// way each device has an eighth of the product.
#[test]
fn a_product_is_shared_along_the_axes_of_its_arrays() {
    let shares = shares(&module(
        "  x = f32[64,32] parameter(0), sharding={devices=[8,1]<=[8]}
  w = f32[32,16] parameter(1), sharding={devices=[8,1]<=[8]}
  y = f32[64,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT g = f32[32,16] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}, \
         sharding={devices=[8,1]<=[8]}
",
    ))
    .unwrap();
    assert_eq!(shares.devices, 8);
    let whole = 2 * 64 * 32 * 16;
    for product in &shares.products {
        assert_eq!((product.whole, product.least, product.most), (whole, whole / 8, whole / 8));
    }
    assert_eq!(
        bytes(&shares.parameters),
        [(8192, 1024, Source::Written), (2048, 256, Source::Written)]
    );
    assert_eq!(bytes(&shares.results), [(2048, 256, Source::Written)]);
}

#[test]
fn elementwise_work_keeps_the_sharding() {
    for opcode in ["abs", "acos", "tanh"] {
        let body = format!(
            "  x = f32[64,32] parameter(0), sharding={{devices=[8,1]<=[8]}}\n  \
             ROOT y = f32[64,32] {opcode}(x)\n"
        );
        let shares = shares(&module(&body)).unwrap();
        let (whole, device, _) = bytes(&shares.results)[0];
        assert_eq!((whole, device), (8192, 1024), "{opcode}");
    }
}

/// An axis that only one side of the contraction has may be gathered first.
#[test]
fn what_is_not_determined_has_bounds() {
    let shares = shares(&module(
        "  x = f32[64,32] parameter(0), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
  w = f32[32,16] parameter(1), sharding={devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}
  ROOT y = f32[64,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
",
    ))
    .unwrap();
    let product = shares.products[0];
    let whole = 2 * 64 * 32 * 16;
    assert!(!product.is_determined());
    assert_eq!((product.least, product.most), (whole / 8, whole / 2));
    assert_eq!(bytes(&shares.results), [(4096, 2048, Source::Implied)]);
}

/// What every device holds in full costs the same on each.
#[test]
fn replicated_work_is_not_divided() {
    let shares = shares(&module(
        "  x = f32[64,32] parameter(0), sharding={devices=[1,1,8]<=[8] last_tile_dim_replicate}
  w = f32[32,16] parameter(1), sharding={replicated}
  ROOT y = f32[64,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
         sharding={replicated}
",
    ))
    .unwrap();
    let product = shares.products[0];
    assert!(product.is_determined());
    assert_eq!((product.whole, product.most), (2 * 64 * 32 * 16, 2 * 64 * 32 * 16));
}

/// The last tile of an uneven dimension is padded.
#[test]
fn uneven_tiles_are_padded() {
    let shares = shares(&module(
        "  ROOT x = f32[9,4] parameter(0), sharding={devices=[8,1]<=[8]}
",
    ))
    .unwrap();
    assert_eq!(bytes(&shares.parameters), [(144, 32, Source::Written)]);
}

#[test]
fn without_shardings_only_scalars_are_known() {
    let shares = shares(&module(
        "  s = f32[] parameter(0)
  x = f32[8,8] parameter(1)
  ROOT y = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
",
    ))
    .unwrap();
    assert!(!shares.is_written);
    let sources: Vec<Source> = shares.parameters.iter().map(|array| array.bytes.source).collect();
    assert_eq!(sources, [Source::Written, Source::Unknown]);
    assert_eq!((shares.parameters[1].bytes.least, shares.parameters[1].bytes.most), (32, 256));
    assert_eq!((shares.products[0].least, shares.products[0].most), (128, 1024));
}

/// XLA chooses how to split a parameter without a sharding.
#[test]
fn parameters_without_shardings_leave_bounds() {
    let shares = shares(&module(
        "  x = f32[64,32] parameter(0), sharding={replicated}
  w = f32[32,16] parameter(1)
  ROOT y = f32[64,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
",
    ))
    .unwrap();
    assert!(shares.is_written);
    let whole = 2 * 64 * 32 * 16;
    assert_eq!((shares.products[0].least, shares.products[0].most), (whole / 8, whole));
}

/// Inside a manual computation, shapes are those of one device.
#[test]
fn manual_computations_are_written_for_one_device() {
    let text = r##"HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=4, "model"=2]>}}

xla.sdy.manual_computation_body {
  a = f32[16,16] parameter(0)
  b = f32[16,8] parameter(1)
  ROOT c = f32[16,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY e {
  x = f32[64,32] parameter(0), sharding={devices=[4,2]<=[8]}
  w = f32[32,8] parameter(1), sharding={devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}
  in = (f32[16,16], f32[16,8]) custom-call(x, w), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\"data\"}, {\"model\"}]>, <@mesh, [{\"model\"}, {}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\"data\", \"model\"}>"}
  a = f32[16,16] get-tuple-element(in), index=0
  b = f32[16,8] get-tuple-element(in), index=1
  c = f32[16,8] call(a, b), to_apply=xla.sdy.manual_computation_body
  ROOT y = f32[64,8] custom-call(c), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={xla.sdy.manual_axes="#sdy<manual_axes{\"data\", \"model\"}>",xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{\"data\"}, {}]>]>"}
}
"##;
    let shares = shares(text).unwrap();
    let one = 2 * 16 * 16 * 8;
    let product = shares.products[0];
    assert_eq!((product.whole, product.least, product.most), (8 * one, one, one));
    assert_eq!(bytes(&shares.results), [(2048, 512, Source::Written)]);
}

/// Groups of collectives alone may be those of replicas, each with arrays of its own.
#[test]
fn programs_of_one_device_have_no_share() {
    let plain = "HloModule m\n\nENTRY e {\n  ROOT p = f32[8] parameter(0)\n}\n";
    assert!(shares(plain).is_none());
    let scheduled = module("  ROOT p = f32[8] parameter(0), sharding={devices=[8]<=[8]}\n")
        .replace("m,", "m, is_scheduled=true,");
    assert!(shares(&scheduled).is_none());
    let replicas = "HloModule m, replica_count=4\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\nENTRY e {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] all-reduce(p), replica_groups={{0,1,2,3}}, to_apply=sum\n}\n";
    assert!(shares(replicas).is_none());
}

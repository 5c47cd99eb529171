"""Out-of-memory messages and partitioner warnings, in the wordings of their eras.

Written after public logs and the format strings of XLA and tsl; the figures of each text are stated
in `test_messages.py`.
"""

TPU_2019 = """\
E1111 07:35:00.272763 140408571025152 error_handling.py:81] Closing session due to error From worker:
Compilation failure: Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm. \
Exceeded hbm capacity by 25.74G.

Total hbm usage >= 41.74G:
    reserved        528.00M
    program          41.22G
    arguments       unknown size

Output size unknown.

Program hbm requirement 41.22G:
    reserved           4.0K
    global           29.82M
    HLO temp         41.19G (24.2% utilization, 0.7% fragmentation (293.84M))

  Largest program allocations in hbm:

  1. Size: 32.00G
     Operator: op_type="FloorMod" op_name="slicewise/cic_update/FloorMod"
     Shape: s32[8388608,8,4]{2,1,0:T(8,128)}
     Unpadded size: 1.00G
     Extra memory due to padding: 31.00G (32.0x expansion)
     XLA label: %copy.4 = s32[8388608,8,4]{2,1,0:T(8,128)} copy(s32[8388608,8,4]{0,2,1:T(4,128)} %p), \
metadata={op_type="FloorMod" op_name="slicewise/cic_update/FloorMod"}
     Allocation type: HLO temp
     ==========================

  2. Size: 512.00M
     Operator: op_name="jit(train_step)/jvp(while)/body/dynamic_update_slice" source_file="m.py" \
source_line=12
     Shape: bf16[48,8,1024,512]{3,2,1,0:T(8,128)(2,1)}
     Unpadded size: 512.00M
     XLA label: dynamic-update-slice.3 = dynamic-update-slice(a.1, b.2, c.3)
     Allocation type: HLO temp
     ==========================
"""

SCOPED = """\
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:
Ran out of memory in memory space vmem while allocating on stack for %fwd.1 = \
bf16[16384,6144]{1,0:T(8,128)(2,1)} custom-call(%args_0_.1), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(call)/jit(_fwd)/pallas_call" stack_frame_id=23}. Scoped allocation with size \
36.25M and limit 32.00M exceeded scoped vmem limit by 4.25M. It should not be possible to run out of \
scoped vmem -
See https://openxla.org/xla/errors/error_1001 for more details.
"""

TEMPORARIES = """\
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required \
for HLO temporaries (46.03G) exceeds available HBM (15.75G).
"""

LOADING = """\
XlaRuntimeError: RESOURCE_EXHAUSTED: Error loading program 'jit_step': Attempting to reserve 29.49G \
at the bottom of memory. That was not possible. There are 147.64M free, 0B reserved, and 147.64M \
reservable. Scope: unknown..: while running replica 0 and partition 34 of a replicated computation.
"""

DEVICE_BUFFER = """\
ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 2.00G. That \
was not possible. There are 1.50G free.; (0x0x1_HBM0)
"""

IN_PIECES = """\
RESOURCE_EXHAUSTED: Attempting to allocate 128.00M. That was not possible. There are 287.93M free. \
The largest contiguous region of free memory is 87.93M due to fragmentation.
"""

SPARSE = """\
RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding \
available bytes: 95.74G
"""

SMEM = """\
RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of \
memory in memory space smem. Used 1.01M of 1.00M smem. Exceeded smem capacity by 7.2K.
"""

GPU = """\
2024-05-28 07:02:44.349: W external/tsl/tsl/framework/bfc_allocator.cc:482] Allocator (GPU_0_bfc) ran \
out of memory trying to allocate 20.00GiB (rounded to 21474836736)requested by op
2024-05-28 07:02:44.350: I external/tsl/tsl/framework/bfc_allocator.cc:1046] Bin (256): \tTotal Chunks: \
32, Chunks in use: 31. 8.0KiB allocated for chunks. 7.8KiB in use in bin. 1.2KiB client-requested in \
use in bin.
2024-05-28 07:02:44.350: I external/tsl/tsl/framework/bfc_allocator.cc:1062] InUse at 7f1 of size 256
2024-05-28 07:02:44.351: I external/tsl/tsl/framework/bfc_allocator.cc:1103] 1 Chunks of size 238522880 \
totalling 227.47MiB
2024-05-28 07:02:44.352: I external/tsl/tsl/framework/bfc_allocator.cc:1103] 4 Chunks of size 256000000 \
totalling 976.56MiB
2024-05-28 07:02:44.353: I external/tsl/tsl/framework/bfc_allocator.cc:1107] Sum Total of in-use \
chunks: 1.18GiB
2024-05-28 07:02:44.354: I external/tsl/tsl/framework/bfc_allocator.cc:1109] Total bytes in pool: \
22231108608 memory_limit_: 22231108608 available bytes: 0 curr_region_allocation_bytes_: 80462217216
2024-05-28 07:02:44.355: I external/tsl/tsl/framework/bfc_allocator.cc:1114] Stats:
Limit:                     22231108608
InUse:                      1262522880
MaxInUse:                   2230617088
NumAllocs:                     2268042
MaxAllocSize:                256000000
Reserved:                            0
PeakReserved:                        0
LargestFreeBlock:                    0

2024-05-28 07:02:44.356: W external/tsl/tsl/framework/bfc_allocator.cc:494] *****____________________
E0528 07:02:44.357   27487 pjrt_stream_executor_client.cc:2826] Execution of replica 0 failed: \
RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.02GiB
              constant allocation:         0B
        maybe_live_out allocation:    4.89GiB
     preallocated temp allocation:   20.00GiB
  preallocated temp fragmentation:         0B (0.00%)
                 total allocation:   25.91GiB
              total fragmentation:       112B (0.00%)
Peak buffers:
\tBuffer 1:
\t\tSize: 15.89GiB
\t\tOperator: op_name="jit(loss)/jit(main)/decode/dot_general[precision=None]" \
source_file="/home/user/gemma.py" source_line=175
\t\tXLA Label: custom-call
\t\tShape: f32[16585,257152]
\t\t==========================

\tBuffer 2:
\t\tSize: 1.96GiB
\t\tEntry Parameter Subshape: f32[2046,257152]
\t\t==========================

Traceback (most recent call last):
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate \
21474836480 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.02GiB
"""

DRIVER = """\
2024-06-24 17:01:13.933: E external/xla/xla/stream_executor/rocm/rocm_driver.cc:1268] failed to \
allocate 154.06GiB (165425291480 bytes) from device: HIP_ERROR_OutOfMemory
2024-06-24 17:01:13.936: E external/xla/xla/pjrt/pjrt_stream_executor_client.cc:2732] Execution of \
replica 0 failed: RESOURCE_EXHAUSTED: Failed to allocate request for 154.06GiB (165425291480B) on \
device ordinal 0
"""

HOST = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8796093022208 bytes.\n"

OLD_WARNING = """\
E0531 10:54:04.832741 2609008 spmd_partitioner.cc:569] [spmd] Involuntary full rematerialization. The \
compiler was not able to go from sharding {devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} \
without doing a full rematerialization of the tensor. You probably want to enrich the sharding \
annotations to prevent this from happening.
"""

WARNING_2025 = """\
2025-04-14 17:55:24.092274: E external/xla/xla/service/spmd/spmd_partitioner.cc:621] [spmd] Involuntary \
full rematerialization. The compiler was not able to go from sharding {devices=[2,1,4]<=[4,2]T(1,0)} to \
{devices=[1,8,1]<=[8]} without doing a full rematerialization of the tensor for HLO operation: \
%multiply.4 = f32[16,64,32]{2,1,0} multiply(%a, %b), sharding={devices=[2,1,4]<=[4,2]T(1,0)}, \
metadata={op_name="jit(join)/residual/mul" source_file="train.py" source_line=42}. You probably want \
to enrich the sharding annotations to prevent this from happening.
"""

NEW_WARNING = """\
W1015 18:20:08.668874 12979952 spmd_partitioner.cc:645] [SPMD] Involuntary full rematerialization. The \
compiler cannot go from sharding {devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} efficiently \
for HLO operation %multiply.4 = f32[16,64,32]{2,1,0} multiply(%a, %b), \
sharding={devices=[2,1,4]<=[4,2]T(1,0)}, metadata={op_name="jit(join)/residual/mul" \
source_file="train.py" source_line=42}. As the last resort, SPMD will replicate the tensor and then \
partition it to obtain the target sharding, which is inefficient. This issue will be fixed by Shardy \
partitioner in the future, which is tracked in b/433785288. Contact Shardy or XLA team for help.
"""

ALL = {name.lower(): text for name, text in list(globals().items()) if name.isupper()}

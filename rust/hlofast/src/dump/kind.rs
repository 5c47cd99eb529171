//! The kinds of files in a dump directory.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every variant, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name used in tables.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

pub(super) use words;

words! {
    /// The kind of a file.
    Kind {
        /// A module of a user's program, at some stage of compilation.
        Module = "module",
        /// A module that the compiler creates internally: one fusion, one candidate of an
        /// autotuner.
        Fragment = "fragment",
        /// XLA's account of a module's memory.
        Memory = "memory",
        /// Flags, options and targets of a compilation.
        Config = "config",
        /// The order in which a module runs, or its thunks.
        Schedule = "schedule",
        /// Generated code: LLVM IR, PTX, objects, MLIR of kernels.
        Code = "code",
        /// A rendered graph or page.
        Render = "render",
        /// A module with its arguments.
        Snapshot = "snapshot",
        /// StableHLO or a jaxpr, the input of HLO.
        Ir = "ir",
        /// A log with modules in it.
        Log = "log",
        /// Several files in one.
        Archive = "archive",
        /// A directory that could not be read.
        Folder = "folder",
        /// Not a dump file.
        #[default]
        Other = "other",
    }
}

words! {
    /// The stage of compilation of a module, in order.
    Stage {
        /// Before any pass.
        #[default]
        Before = "before",
        /// Between two passes.
        Pass = "pass",
        /// Within a pass.
        InPass = "in-pass",
        /// After the SPMD partitioner.
        Partitioned = "partitioned",
        /// Before GPU configurations are chosen.
        BeforeConfigAssignment = "before-config-assignment",
        /// Optimised.
        After = "after",
        /// Optimised, before buffers were assigned (TPU).
        AfterBeforeBuffers = "after-before-buffer-assignment",
        /// Optimised, with buffers assigned (TPU).
        AfterBuffers = "after-buffer-assignment",
        /// The program that runs (TPU).
        Codegen = "codegen",
    }
}

words! {
    /// The outcome of a file.
    Status {
        /// Read and analysed.
        Read = "read",
        /// Should have been read, but could not be.
        Failed = "failed",
        /// Not to be read.
        #[default]
        Skipped = "skipped",
    }
}

impl Stage {
    /// Whether the module is optimised.
    pub fn is_after(self) -> bool {
        self >= Stage::After
    }

    /// How well a module of this stage represents its program; higher is better.
    pub fn rank(self) -> u32 {
        match self {
            Stage::Codegen => 8,
            Stage::After => 7,
            Stage::AfterBuffers => 6,
            Stage::AfterBeforeBuffers => 5,
            Stage::BeforeConfigAssignment => 4,
            Stage::Pass => 3,
            Stage::Partitioned => 2,
            Stage::InPass => 1,
            Stage::Before => 0,
        }
    }
}

impl Kind {
    /// Why files of this kind are not read; None for kinds that are read.
    pub fn why_skipped(self) -> Option<&'static str> {
        Some(match self {
            Kind::Module | Kind::Fragment | Kind::Log | Kind::Other | Kind::Folder => return None,
            Kind::Memory => "a memory file, linked to its module",
            Kind::Config => "compilation flags or options",
            Kind::Schedule => "a schedule",
            Kind::Code => "generated code",
            Kind::Render => "a rendered graph or page",
            Kind::Snapshot => "a snapshot with arguments",
            Kind::Ir => "StableHLO or a jaxpr, not HLO",
            Kind::Archive => "an archive; unpack it first",
        })
    }
}

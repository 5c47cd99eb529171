//! What files in a dump directory are.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The word used in tables.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

pub(super) use words;

words! {
    /// What a file is.
    Kind {
        /// A module that a user's program became, at some stage of its compilation.
        Module = "module",
        /// A module that the compiler made on the way: one fusion, one candidate of a tuner.
        Fragment = "fragment",
        /// XLA's account of a module's memory.
        Memory = "memory",
        /// Flags, options and targets of a compilation.
        Config = "config",
        /// In which order a module runs, and in which thunks.
        Schedule = "schedule",
        /// What was generated: LLVM IR, PTX, objects, MLIR of kernels.
        Code = "code",
        /// A picture or a page.
        Render = "render",
        /// A module with its arguments.
        Snapshot = "snapshot",
        /// StableHLO or a jaxpr, which come before HLO.
        Ir = "ir",
        /// A log with modules in it.
        Log = "log",
        /// Several files in one.
        Archive = "archive",
        /// A folder that could not be entered.
        Folder = "folder",
        /// Nothing that a dump has.
        #[default]
        Other = "other",
    }
}

words! {
    /// How far the compilation of a module was, in the order of compilation.
    Stage {
        /// Before XLA did anything.
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
        /// What runs (TPU).
        Codegen = "codegen",
    }
}

words! {
    /// What became of a file.
    Status {
        /// Read and analysed.
        Read = "read",
        /// It should have been read and could not be.
        Failed = "failed",
        /// Nothing to read.
        #[default]
        Skipped = "skipped",
    }
}

impl Stage {
    /// Whether the module is optimised.
    pub fn is_after(self) -> bool {
        self >= Stage::After
    }

    /// How well a module of this stage stands for its program; more is better.
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
    /// Why files of this kind are not read; None for those that are.
    pub fn why_skipped(self) -> Option<&'static str> {
        Some(match self {
            Kind::Module | Kind::Fragment | Kind::Log | Kind::Other | Kind::Folder => return None,
            Kind::Memory => "a memory file, linked to its module",
            Kind::Config => "flags or options of a compilation",
            Kind::Schedule => "a schedule",
            Kind::Code => "generated code",
            Kind::Render => "a picture or a page",
            Kind::Snapshot => "a snapshot with arguments",
            Kind::Ir => "StableHLO or a jaxpr, not HLO",
            Kind::Archive => "an archive, to be unpacked first",
        })
    }
}

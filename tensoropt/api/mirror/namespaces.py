"""Tables behind the mirror: which names of TensorFlow are mirrored, which are ours, and which cannot be supported.

Names are dotted, without ``tf.`` in front (``nn.relu``). Nothing here needs TensorFlow to be loaded.
"""

from __future__ import annotations

__all__ = [
    "ALIASES",
    "CONTEXT_CLASSES",
    "NAMESPACES",
    "OWN",
    "PLAIN",
    "PLAIN_NAMESPACES",
    "UNSUPPORTED",
    "VERSION_1_ONLY",
]

#: Namespaces whose callables are wrapped. Namespaces inside them (``math.special``) are too.
NAMESPACES = (
    "audio", "bitwise", "compat", "contrib.crf", "contrib.data", "contrib.framework", "contrib.layers",
    "contrib.learn", "contrib.legacy_seq2seq", "contrib.lookup", "contrib.losses", "contrib.metrics", "contrib.rnn",
    "contrib.seq2seq", "contrib.slim", "contrib.slim.nets", "contrib.training", "data", "debugging", "dtypes",
    "estimator", "graph_util", "image", "initializers", "io", "layers", "linalg", "lookup", "losses", "manip",
    "math", "metrics", "nest", "nn", "nn.rnn_cell", "quantization", "ragged", "random", "raw_ops", "sets", "signal",
    "sparse", "spectral", "strings", "summary", "train",
)  # fmt: skip

#: Namespaces where ``tf.X`` is Keras or needs eager mode, so that only ``tf.compat.v1.X`` is looked at.
VERSION_1_ONLY = frozenset({"initializers", "layers", "losses", "metrics", "summary", "train"})

#: Namespaces that build no ops: TensorFlow's own module is handed out.
PLAIN_NAMESPACES = frozenset(
    {
        "app", "compat.v2", "distributions", "flags", "gfile", "io.gfile", "logging", "profiler", "python_io",
        "resource_loader", "sysconfig", "test", "types", "user_ops", "version",
    }
)  # fmt: skip

#: Callables that read or convert Python values; they are handed out unwrapped, so that asking about a value
#: does not switch the thread to graph mode.
PLAIN = frozenset(
    {
        "NoGradient", "NotDifferentiable", "RegisterGradient", "as_dtype", "compat.as_bytes", "compat.as_str",
        "compat.as_str_any",
        "compat.as_text", "compat.dimension_at_index", "compat.dimension_value", "compat.forward_compatible",
        "compat.path_to_str", "dimension_at_index", "dimension_value",
        "dtypes.as_dtype", "get_default_session", "get_logger", "get_static_value", "is_symbolic_tensor", "is_tensor",
        "load_file_system_library", "load_library", "load_op_library", "make_ndarray", "make_tensor_proto",
        "no_gradient", "register_tensor_conversion_function", "type_spec_from_value",
    }
)  # fmt: skip

#: Classes whose construction or class methods build ops or read the default graph. All other classes are
#: handed out as they are: what they build, they build when called, by which time the private graph is the
#: default.
CONTEXT_CLASSES = frozenset(
    {
        "CriticalSection", "data.Dataset", "data.FixedLengthRecordDataset", "data.Iterator", "data.TFRecordDataset",
        "data.TextLineDataset", "RaggedTensor", "SparseTensor", "TensorArray", "Variable", "name_scope",
        "sparse.SparseTensor", "train.ExponentialMovingAverage", "variable_scope",
        *(
            f"linalg.LinearOperator{kind}"
            for kind in (
                "", "Adjoint", "BlockDiag", "BlockLowerTriangular", "Circulant", "Circulant2D", "Circulant3D",
                "Composition", "Diag", "FullMatrix", "Householder", "Identity", "Inversion", "Kronecker",
                "LowRankUpdate", "LowerTriangular", "Permutation", "ScaledIdentity", "Toeplitz", "Tridiag",
                "Zeros",
            )
        ),
    }
)  # fmt: skip

_OPTIMIZERS = (
    "AdadeltaOptimizer", "AdagradDAOptimizer", "AdagradOptimizer", "AdamOptimizer", "FtrlOptimizer",
    "GradientDescentOptimizer", "MomentumOptimizer", "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer", "RMSPropOptimizer",
)  # fmt: skip


def _own(module: str, names: str, *paths: str) -> dict[str, tuple[str, str]]:
    """The places of names of a module, which are public in some namespaces; in the package itself by default."""
    return {f"{path}.{name}" if path else name: (module, name) for path in paths or ("",) for name in names.split()}


#: Names that are ours: dotted public name to (module, attribute). They win over TensorFlow's.
OWN: dict[str, tuple[str, str]] = {
    # tf.rank and tf.size are ops, so the process's own place in the job is world_rank and world_size.
    **_own("tensoropt.api.mirror.train", " ".join(_OPTIMIZERS), "", "train"),
    **_own("tensoropt.api.mirror.train", "Optimizer", "train"),
    **_own(
        "tensoropt.api.mirror.layers",
        "AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Conv1D Conv2D Conv2DTranspose Conv3D "
        "Conv3DTranspose Dense Dropout Flatten InputSpec Layer MaxPooling1D MaxPooling2D MaxPooling3D SeparableConv1D "
        "SeparableConv2D average_pooling1d average_pooling2d average_pooling3d batch_normalization conv1d conv2d "
        "conv2d_transpose conv3d conv3d_transpose dense dropout embedding flatten max_pooling1d max_pooling2d "
        "max_pooling3d separable_conv1d separable_conv2d",
        "layers",
    ),
    **_own(
        "tensoropt.api.mirror.cells",
        "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell LSTMStateTuple MultiRNNCell RNNCell "
        "ResidualWrapper",
        "nn.rnn_cell",
        "contrib.rnn",
    ),
    **_own("tensoropt.api.mirror.recurrent", "static_bidirectional_rnn static_rnn", "contrib.rnn", "nn"),
    **_own("tensoropt.api.mirror.recurrent", "bidirectional_dynamic_rnn dynamic_rnn raw_rnn", "nn"),
    **_own(
        "tensoropt.contrib.rnn_cells",
        "AttentionCellWrapper EmbeddingWrapper GRUBlockCell GRUBlockCellV2 InputProjectionWrapper LSTMBlockCell "
        "LayerNormBasicLSTMCell NASCell OutputProjectionWrapper",
        "contrib.rnn",
    ),
    **_own(
        "tensoropt.contrib.fused_rnn",
        "FusedRNNCell FusedRNNCellAdaptor LSTMBlockFusedCell TimeReversedFusedRNN stack_bidirectional_dynamic_rnn "
        "stack_bidirectional_rnn",
        "contrib.rnn",
    ),
    **_own(
        "tensoropt.contrib.conditional_random_fields",
        "crf_binary_score crf_decode crf_log_likelihood crf_log_norm crf_multitag_sequence_score crf_sequence_score "
        "crf_unary_score viterbi_decode viterbi_score",
        "contrib.crf",
    ),
    **_own(
        "tensoropt.contrib.seq2seq_attention",
        "AttentionMechanism AttentionWrapper AttentionWrapperState BahdanauAttention LuongAttention hardmax",
        "contrib.seq2seq",
    ),
    **_own(
        "tensoropt.contrib.seq2seq_beam",
        "BeamSearchDecoder BeamSearchDecoderOutput BeamSearchDecoderState FinalBeamSearchDecoderOutput gather_tree "
        "tile_batch",
        "contrib.seq2seq",
    ),
    **_own(
        "tensoropt.contrib.seq2seq_decoder",
        "BasicDecoder BasicDecoderOutput Decoder dynamic_decode",
        "contrib.seq2seq",
    ),
    **_own(
        "tensoropt.contrib.seq2seq_helpers",
        "CustomHelper GreedyEmbeddingHelper Helper InferenceHelper SampleEmbeddingHelper "
        "ScheduledEmbeddingTrainingHelper ScheduledOutputTrainingHelper TrainingHelper",
        "contrib.seq2seq",
    ),
    **_own(
        "tensoropt.api.mirror.lookup_tables",
        "FastHashSpec HashTable StrongHashSpec TextFileIdTableInitializer TextFileStringTableInitializer "
        "index_table_from_file index_table_from_tensor index_to_string_table_from_file "
        "index_to_string_table_from_tensor",
        "contrib.lookup",
    ),
    **_own(
        "tensoropt.api.mirror.lookup_tables",
        "KeyValueTensorInitializer TextFileIndex TextFileInitializer",
        "contrib.lookup",
        "lookup",
    ),
    **_own("tensoropt.api.mirror.lookup_tables", "StaticHashTable StaticVocabularyTable", "lookup"),
    **_own("tensoropt.contrib.hparams", "HParams parse_values", "contrib.training"),
    **_own("tensoropt.api.mirror.script_calls", "ModeKeys", "estimator"),
    **_own(
        "tensoropt.api.mirror.script_calls",
        "Graph disable_control_flow_v2 disable_eager_execution disable_tensor_equality disable_v2_behavior "
        "disable_v2_tensorshape enable_control_flow_v2 enable_resource_variables enable_v2_tensorshape "
        "report_uninitialized_variables",
    ),
    **_own("tensoropt.api.mirror.script_calls", "set_random_seed", "", "random"),
    **_own("tensoropt.api.mirror.script_calls", "set_seed", "random"),
    **_own("tensoropt.api.mirror.script_calls", "start_queue_runners", "train"),
    **_own("tensoropt.contrib.sequences", "embed_sequence", "contrib.layers"),
    **_own("tensoropt.contrib.sequences", "rnn_decoder sequence_loss_by_example", "contrib.legacy_seq2seq"),
    **_own("tensoropt.contrib.sequences", "sequence_loss", "contrib.seq2seq"),
    **_own(
        "tensoropt.api.mirror.own_functions",
        "embedding_lookup_sparse nce_loss sampled_softmax_loss silu swish",
        "nn",
    ),
    **_own("tensoropt.api.mirror.own_functions", "piecewise_constant piecewise_constant_decay", "train"),
    **_own("tensoropt.api.mirror.own_functions", "softmax_cross_entropy"),
    **_own("tensoropt.api.mirror.global_step", "create_global_step get_global_step get_or_create_global_step", "train"),
    **_own("tensoropt.api.mirror.gradients", "gradients vectorized_map"),
    **_own("tensoropt.api.session.summary_writer", "FileWriter FileWriterCache", "summary"),
    **_own("tensoropt.api.session.tf1_session", "InteractiveSession Session"),
    **_own("tensoropt.api.mirror.model", "reset_default_graph"),
    **_own("tensoropt.api.session.verify", "reference_losses verify"),
    **_own("tensoropt.api.session.report", "show_strategy strategy_rows"),
    **_own("tensoropt.api.session.saver", "Saver", "train"),
    **_own("tensoropt.api.session.supervisor", "Supervisor", "train"),
    **_own("tensoropt.api.session.scaffold", "Scaffold", "train"),
    **_own(
        "tensoropt.api.session.monitored_session",
        "ChiefSessionCreator MonitoredSession MonitoredTrainingSession SingularMonitoredSession",
        "train",
    ),
    **_own(
        "tensoropt.api.session.hooks",
        "CheckpointSaverHook LoggingTensorHook NanTensorHook ProfilerHook SecondOrStepTimer StepCounterHook "
        "SummarySaverHook",
        "estimator",
        "train",
    ),
    **_own(
        "tensorflow.compat.v1.train",
        "CheckpointSaverListener FeedFnHook FinalOpsHook NanLossDuringTrainingError SessionRunArgs SessionRunContext "
        "SessionRunHook SessionRunValues StopAtStepHook",
        "estimator",
    ),
    **_own(
        "tensoropt.api.mirror.readers",
        "FixedLengthRecordReader IdentityReader ReaderBase TFRecordReader TextLineReader WholeFileReader",
    ),
    **_own(
        "tensoropt.api.mirror.producers",
        "batch input_producer range_input_producer shuffle_batch slice_input_producer string_input_producer",
        "train",
    ),
    **_own("tensoropt.api.mirror.producers", "bucket bucket_by_sequence_length", "contrib.training"),
    **_own("tensoropt.api.functions.function", "function"),
    **_own("tensoropt.api.functions.rank_zero", "on_rank_0"),
    **_own("tensoropt.api.session.compare", "compare"),
    **_own("tensoropt.api.session.measuring", "measuring"),
    **_own("tensoropt.api.session.explain", "diff explain report"),
    **_own("tensoropt.problem.frontier", "Frontier"),
    **_own("tensoropt.mcmc.options", "Mcmc"),
    **_own("tensoropt.plan.plan", "Plan"),
    **_own("tensoropt.cluster.topology", "Topology"),
    **_own("tensoropt.api.session.strategy_search", "find_frontier find_strategy profile_strategies"),
    **_own("tensoropt.api.session.runtime", "build_execution_graph init run world_rank world_size"),
    "contrib.learn.ModeKeys": ("tensoropt.api.mirror.script_calls", "LearnModeKeys"),
    "contrib.legacy_seq2seq.sequence_loss": ("tensoropt.contrib.sequences", "sequence_loss_of_steps"),
}

#: Names of TensorFlow's removed ``tf.contrib`` for what has another one now.
ALIASES = {
    **{
        f"contrib.framework.{name}": f"train.{name}"
        for name in (
            "create_global_step", "get_global_step", "get_or_create_global_step", "init_from_checkpoint",
            "list_variables", "load_checkpoint", "load_variable",
        )
    },
    "contrib.framework.is_tensor": "is_tensor",
    "contrib.framework.nest": "nest",
    "contrib.metrics.confusion_matrix": "math.confusion_matrix",
    "contrib.metrics.streaming_mean": "metrics.mean",
    "contrib.metrics.streaming_mean_tensor": "metrics.mean_tensor",
}  # fmt: skip

_FEED = "Read and batch the data by tensoropt.data, or in Python and pass it through feed_dict."
_MINIMIZE = "Use tensoropt.gradients, or the optimizers of tensoropt.train."
_MODE = "tensoropt always builds a graph of resource variables; leave the call out."
_SPLIT = "Leave variables whole: find_strategy decides how each one is split."
_STRATEGY = "Use tensoropt.find_strategy and tensoropt.build_execution_graph, under mpirun."
_SESSION = "Use tensoropt.Session or tensoropt.run."
_CHECKPOINT = "Use tensoropt.train.Saver, whose checkpoints plain TensorFlow reads."
_OPTIMIZER = "Use one of " + ", ".join(f"tensoropt.train.{name}" for name in _OPTIMIZERS) + "."
_GRADIENT = "Write the function from differentiable ops, or use tensoropt.stop_gradient."
_ESTIMATOR = (
    "Call the model function on the tensors of a dataset, and run what it gives in "
    "tensoropt.train.MonitoredTrainingSession."
)
_TABLE = "Use a table of constants (contrib.lookup, lookup), or a variable."
_LAYER = "Use the layers of tensoropt.layers, or tensoropt.get_variable and ops."
_OUTSIDE = "It builds no model: call it on TensorFlow itself."


def _rows(remedy: str, names: str, prefix: str = "") -> dict[str, str]:
    return {prefix + name: remedy for name in names.split()}


#: Names of TensorFlow that would be wrong or without effect in a distributed logical graph: name to remedy. A
#: name of a namespace stands for all that is in it.
UNSUPPORTED: dict[str, str] = {
    **_rows(
        "Call the Python function directly: mirrored calls build one graph.",
        "wrap_function autograph",
    ),
    **_rows(_MINIMIZE, "GradientTape autodiff hessians"),
    **_rows(
        _GRADIENT,
        "nondifferentiable_batch_function",
    ),
    **_rows(
        _MODE,
        "disable_resource_variables enable_eager_execution enable_tensor_equality enable_v2_behavior",
    ),
    **_rows(
        "Build the model with tensoropt's calls; start a new one with tensoropt.reset_default_graph().",
        "import_graph_def train.import_meta_graph train.export_meta_graph",
    ),
    **_rows(_SESSION, "get_session_handle get_session_tensor delete_session_tensor"),
    **_rows(
        _SPLIT,
        "create_partitioned_variables fixed_size_partitioner min_max_variable_partitioner "
        "variable_axis_size_partitioner",
    ),
    **_rows(
        _FEED,
        "ConditionalAccumulator ConditionalAccumulatorBase FIFOQueue LMDBReader PaddingFIFOQueue PriorityQueue "
        "QueueBase RandomShuffleQueue SparseConditionalAccumulator "
        "queue "
        "feature_column sparse.SparseConditionalAccumulator io.PaddingFIFOQueue io.PriorityQueue "
        "io.QueueBase "
        "io.RandomShuffleQueue",
    ),
    **_rows(
        _FEED,
        "LooperThread QueueRunner add_queue_runner batch_join limit_epochs maybe_batch maybe_batch_join "
        "maybe_shuffle_batch maybe_shuffle_batch_join queue_runner shuffle_batch_join",
        "train.",
    ),
    **_rows(
        _STRATEGY,
        "distribute dtensor tpu train.SyncReplicasOptimizer train.Server train.replica_device_setter",
    ),
    **_rows(_ESTIMATOR, "DNNClassifier DNNRegressor Estimator Experiment LinearClassifier RunConfig", "contrib.learn."),
    **_rows(
        _ESTIMATOR,
        "BestExporter BoostedTreesClassifier DNNClassifier DNNRegressor Estimator EstimatorSpec EvalSpec Exporter "
        "FinalExporter LatestExporter LinearClassifier LinearRegressor RunConfig TrainSpec WarmStartSettings "
        "add_metrics export inputs train_and_evaluate",
        "estimator.",
    ),
    **_rows(_LAYER, "tpu", "contrib."),
    **_rows(
        _FEED,
        "slim.data_provider slim.dataset_data_provider slim.parallel_reader slim.prefetch_queue slim.queues",
        "contrib.",
    ),
    **_rows(_TABLE, "lookup.MutableDenseHashTable lookup.MutableHashTable", "contrib."),
    **_rows(_TABLE, "lookup.experimental"),
    **_rows("Use tensoropt.recompute_grad.", "layers.recompute_grad", "contrib."),
    **_rows(_GRADIENT, "layers.rev_block", "contrib."),
    **_rows("Use an optimizer of tensoropt.train.", "opt", "contrib."),
    **_rows(
        "Use tensoropt's random ops; their seeds follow tensoropt.set_random_seed.",
        "Generator get_global_generator set_global_generator",
        "random.",
    ),
    **_rows(_OPTIMIZER, "experimental sdca_fprint sdca_optimizer sdca_shrink_l1", "train."),
    **_rows(_OPTIMIZER, "optimizers"),
    **_rows(
        _CHECKPOINT,
        "Checkpoint CheckpointManager CheckpointOptions warm_start",
        "train.",
    ),
    **_rows(_CHECKPOINT, "saved_model"),
    **_rows(
        "Use tensoropt.train.MonitoredTrainingSession, which restores, saves and stops for all ranks.",
        "GlobalStepWaiterHook SessionManager WorkerSessionCreator basic_train_loop",
        "train.",
    ),
    **_rows(
        _OUTSIDE,
        "config experimental lite mixed_precision mlir security tools xla",
    ),
}

"""Made from include/ravel/*.h by python/tools/abi.py. Do not edit: run it again."""

import ctypes as C

# ravel_advantage
(RAVEL_ADVANTAGE_GRPO, RAVEL_ADVANTAGE_DR_GRPO, RAVEL_ADVANTAGE_RLOO, RAVEL_ADVANTAGE_NONE) = range(0, 4)
# ravel_axis
RAVEL_AXIS_TP = 1
RAVEL_AXIS_CP = 2
RAVEL_AXIS_DP = 4
RAVEL_AXIS_PP = 8
# ravel_bad_rows
(RAVEL_BAD_ROWS_ERROR, RAVEL_BAD_ROWS_SKIP) = range(0, 2)
# ravel_correction_kind
(RAVEL_CORRECTION_NONE, RAVEL_CORRECTION_TIS, RAVEL_CORRECTION_MIS, RAVEL_CORRECTION_SEQ_TIS, RAVEL_CORRECTION_SEQ_MIS,
    RAVEL_CORRECTION_ICEPOP, RAVEL_CORRECTION_CISPO, RAVEL_CORRECTIONS) = range(0, 8)
# ravel_cp_empty
(RAVEL_CP_EMPTY_FILLER, RAVEL_CP_EMPTY_WIDEN) = range(0, 2)
# ravel_cp_kind
(RAVEL_CP_ZIGZAG, RAVEL_CP_CONTIGUOUS, RAVEL_CP_STRIPED) = range(0, 3)
# ravel_cp_split
(RAVEL_CP_SPLIT_ZIGZAG, RAVEL_CP_SPLIT_CONTIGUOUS) = range(0, 2)
# ravel_decode_flags
RAVEL_DECODE_SKIP_SPECIAL = 1
# ravel_dtype
(RAVEL_U8, RAVEL_I8, RAVEL_I16, RAVEL_U16, RAVEL_I32, RAVEL_U32, RAVEL_I64, RAVEL_U64, RAVEL_F16, RAVEL_BF16, RAVEL_F32, RAVEL_F64,
    RAVEL_BOOL, RAVEL_F8_E4M3, RAVEL_F8_E5M2, RAVEL_F8_E8M0, RAVEL_C64) = range(0, 17)
# ravel_durability
(RAVEL_DURABLE, RAVEL_ATOMIC, RAVEL_IN_PLACE) = range(0, 3)
# ravel_effort
(RAVEL_EFFORT_FAST, RAVEL_EFFORT_DEFAULT, RAVEL_EFFORT_MAX) = range(0, 3)
# ravel_empty_rule
(RAVEL_EMPTY_COUNT, RAVEL_EMPTY_SKIP) = range(0, 2)
# ravel_encode_flags
(RAVEL_ENCODE_TEMPLATE, RAVEL_ENCODE_PLAIN) = range(1, 3)
# ravel_feed_phase
(RAVEL_FEED_READ, RAVEL_FEED_GATHER, RAVEL_FEED_PLAN, RAVEL_FEED_META, RAVEL_FEED_AGREE, RAVEL_FEED_EXCHANGE, RAVEL_FEED_PACK,
    RAVEL_FEED_SHARE, RAVEL_FEED_PHASES) = range(0, 9)
# ravel_field_kind
(RAVEL_FIELD_TOKEN, RAVEL_FIELD_NEXT, RAVEL_FIELD_STEP, RAVEL_FIELD_SAMPLE, RAVEL_FIELD_SPREAD) = range(0, 5)
# ravel_format
(RAVEL_FORMAT_AUTO, RAVEL_FORMAT_CSV, RAVEL_FORMAT_JSONL, RAVEL_FORMAT_NPY) = range(0, 4)
# ravel_framework
(RAVEL_FRAMEWORK_SUM, RAVEL_FRAMEWORK_MEAN) = range(0, 2)
# ravel_group_rule
(RAVEL_GROUPS_FREE, RAVEL_GROUPS_UPDATE, RAVEL_GROUPS_RANK) = range(0, 3)
# ravel_kl
(RAVEL_KL_K1, RAVEL_KL_K2, RAVEL_KL_K3) = range(0, 3)
# ravel_layout
(RAVEL_LAYOUT_PACKED, RAVEL_LAYOUT_PADDED, RAVEL_LAYOUT_PADDED_2D) = range(0, 3)
# ravel_log_level
(RAVEL_LOG_DEBUG, RAVEL_LOG_INFO, RAVEL_LOG_WARN) = range(0, 3)
# ravel_loss_mode
(RAVEL_TOKEN_MEAN, RAVEL_SEQ_MEAN_TOKEN_MEAN, RAVEL_SEQ_MEAN_TOKEN_SUM, RAVEL_SEQ_MEAN_TOKEN_SUM_NORM) = range(0, 4)
# ravel_memory
(RAVEL_HOST, RAVEL_PINNED, RAVEL_DEVICE) = range(0, 3)
# ravel_method
(RAVEL_METHOD_RAVEL, RAVEL_METHOD_NEXT_FIT, RAVEL_METHOD_NEXT_FIT_DECREASING, RAVEL_METHOD_FFD, RAVEL_METHOD_BFD, RAVEL_METHOD_MFFD,
    RAVEL_METHOD_KK, RAVEL_METHOD_LPT, RAVEL_METHOD_FIXED_COUNT, RAVEL_METHOD_AS_IS, RAVEL_METHODS) = range(0, 11)
# ravel_metric_id
(RAVEL_METRIC_TOKENS_CAPACITY, RAVEL_METRIC_TOKENS_PADDED, RAVEL_METRIC_TOKENS_ACTUAL, RAVEL_METRIC_TOKENS_SHARED,
    RAVEL_METRIC_TOKENS_LOSS, RAVEL_METRIC_TOKENS_SQUARES, RAVEL_METRIC_BATCH_SAMPLES, RAVEL_METRIC_BATCH_BINS,
    RAVEL_METRIC_BATCH_FILLERS, RAVEL_METRIC_BATCH_MICRO_STEPS, RAVEL_METRIC_TOKENS_PER_SEC, RAVEL_METRIC_TOKENS_PER_SEC_PER_GPU,
    RAVEL_METRIC_COMPUTE_TOKENS_PER_SEC, RAVEL_METRIC_COMPUTE_TOKENS_PER_SEC_PER_GPU, RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC,
    RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC_PER_GPU, RAVEL_METRIC_SAMPLES_PER_SEC, RAVEL_METRIC_PACKING_EFFICIENCY,
    RAVEL_METRIC_PADDING_SHARE, RAVEL_METRIC_AVG_SEQ_LENGTH, RAVEL_METRIC_MIN_SEQ_LENGTH, RAVEL_METRIC_MAX_SEQ_LENGTH,
    RAVEL_METRIC_FLOPS_MODEL, RAVEL_METRIC_FLOPS_HARDWARE, RAVEL_METRIC_TFLOPS, RAVEL_METRIC_TFLOPS_PER_GPU, RAVEL_METRIC_MFU,
    RAVEL_METRIC_HFU, RAVEL_METRIC_IDLE_SHARE, RAVEL_METRIC_IMBALANCE, RAVEL_METRIC_TOKEN_IMBALANCE, RAVEL_METRIC_PLAN_IDLE_SHARE,
    RAVEL_METRIC_PLAN_IMBALANCE, RAVEL_METRIC_FEED_EXPOSED_SEC, RAVEL_METRIC_FEED_EXPOSED_SHARE, RAVEL_METRIC_RUN_UPDATES,
    RAVEL_METRIC_RUN_CONSUMED_SAMPLES, RAVEL_METRIC_RUN_CONSUMED_BINS, RAVEL_METRIC_RUN_CONSUMED_TOKENS,
    RAVEL_METRIC_RUN_CONSUMED_LOSS_TOKENS, RAVEL_METRIC_RUN_ELAPSED_SEC, RAVEL_METRIC_RUN_TOKENS_PER_SEC, RAVEL_METRIC_TIME_UPDATE,
    RAVEL_METRIC_TIME_WALL, RAVEL_METRIC_TIME_OTHER, RAVEL_METRIC_TIME_ROLLOUT_MEAN, RAVEL_METRIC_TIME_ROLLOUT_MAX,
    RAVEL_METRIC_TIME_ROLLOUT_SLOWEST, RAVEL_METRIC_TIME_ROLLOUT_SELF, RAVEL_METRIC_TIME_ROLLOUT_TOTAL,
    RAVEL_METRIC_TIME_REWARD_MEAN, RAVEL_METRIC_TIME_REWARD_MAX, RAVEL_METRIC_TIME_REWARD_SLOWEST, RAVEL_METRIC_TIME_REWARD_SELF,
    RAVEL_METRIC_TIME_REWARD_TOTAL, RAVEL_METRIC_TIME_ADVANTAGE_MEAN, RAVEL_METRIC_TIME_ADVANTAGE_MAX,
    RAVEL_METRIC_TIME_ADVANTAGE_SLOWEST, RAVEL_METRIC_TIME_ADVANTAGE_SELF, RAVEL_METRIC_TIME_ADVANTAGE_TOTAL,
    RAVEL_METRIC_TIME_REFERENCE_MEAN, RAVEL_METRIC_TIME_REFERENCE_MAX, RAVEL_METRIC_TIME_REFERENCE_SLOWEST,
    RAVEL_METRIC_TIME_REFERENCE_SELF, RAVEL_METRIC_TIME_REFERENCE_TOTAL, RAVEL_METRIC_TIME_FEED_MEAN, RAVEL_METRIC_TIME_FEED_MAX,
    RAVEL_METRIC_TIME_FEED_SLOWEST, RAVEL_METRIC_TIME_FEED_SELF, RAVEL_METRIC_TIME_FEED_TOTAL, RAVEL_METRIC_TIME_FORWARD_MEAN,
    RAVEL_METRIC_TIME_FORWARD_MAX, RAVEL_METRIC_TIME_FORWARD_SLOWEST, RAVEL_METRIC_TIME_FORWARD_SELF,
    RAVEL_METRIC_TIME_FORWARD_TOTAL, RAVEL_METRIC_TIME_BACKWARD_MEAN, RAVEL_METRIC_TIME_BACKWARD_MAX,
    RAVEL_METRIC_TIME_BACKWARD_SLOWEST, RAVEL_METRIC_TIME_BACKWARD_SELF, RAVEL_METRIC_TIME_BACKWARD_TOTAL,
    RAVEL_METRIC_TIME_ALL_REDUCE_MEAN, RAVEL_METRIC_TIME_ALL_REDUCE_MAX, RAVEL_METRIC_TIME_ALL_REDUCE_SLOWEST,
    RAVEL_METRIC_TIME_ALL_REDUCE_SELF, RAVEL_METRIC_TIME_ALL_REDUCE_TOTAL, RAVEL_METRIC_TIME_OPTIMIZER_MEAN,
    RAVEL_METRIC_TIME_OPTIMIZER_MAX, RAVEL_METRIC_TIME_OPTIMIZER_SLOWEST, RAVEL_METRIC_TIME_OPTIMIZER_SELF,
    RAVEL_METRIC_TIME_OPTIMIZER_TOTAL, RAVEL_METRIC_TIME_REFIT_MEAN, RAVEL_METRIC_TIME_REFIT_MAX, RAVEL_METRIC_TIME_REFIT_SLOWEST,
    RAVEL_METRIC_TIME_REFIT_SELF, RAVEL_METRIC_TIME_REFIT_TOTAL, RAVEL_METRIC_TIME_CHECKPOINT_MEAN,
    RAVEL_METRIC_TIME_CHECKPOINT_MAX, RAVEL_METRIC_TIME_CHECKPOINT_SLOWEST, RAVEL_METRIC_TIME_CHECKPOINT_SELF,
    RAVEL_METRIC_TIME_CHECKPOINT_TOTAL, RAVEL_METRIC_TIME_EVAL_MEAN, RAVEL_METRIC_TIME_EVAL_MAX, RAVEL_METRIC_TIME_EVAL_SLOWEST,
    RAVEL_METRIC_TIME_EVAL_SELF, RAVEL_METRIC_TIME_EVAL_TOTAL, RAVEL_METRIC_TIME_FORWARD_MICRO, RAVEL_METRIC_TIME_BACKWARD_MICRO,
    RAVEL_METRIC_MEMORY_RSS, RAVEL_METRIC_MEMORY_RSS_PEAK, RAVEL_METRIC_MEMORY_RSS_UPDATE_PEAK, RAVEL_METRIC_MEMORY_DEVICE,
    RAVEL_METRIC_MEMORY_DEVICE_PEAK, RAVEL_METRIC_MEMORY_DEVICE_UPDATE_PEAK, RAVEL_METRIC_TRAIN_LOSS, RAVEL_METRIC_TRAIN_TOKEN_NLL,
    RAVEL_METRIC_TRAIN_GRAD_NORM, RAVEL_METRIC_TRAIN_LEARNING_RATE, RAVEL_METRIC_TRAIN_SKIPPED, RAVEL_METRIC_EVAL_LOSS,
    RAVEL_METRIC_REFIT_BYTES_NEEDED, RAVEL_METRIC_REFIT_BYTES_MOVED, RAVEL_METRIC_REFIT_TOTAL, RAVEL_METRIC_REFIT_ITERATE,
    RAVEL_METRIC_REFIT_PACK, RAVEL_METRIC_REFIT_SEND, RAVEL_METRIC_REFIT_RECEIVE, RAVEL_METRIC_REFIT_LOAD,
    RAVEL_METRIC_REFIT_COMMIT, RAVEL_METRIC_REFIT_OVERLAP, RAVEL_METRIC_REFIT_RATE, RAVEL_METRIC_REFIT_PUBLISH,
    RAVEL_METRIC_REFIT_PREPARE, RAVEL_METRIC_REFIT_PAUSE, RAVEL_METRIC_REFIT_VERSION_LAG, RAVEL_METRIC_REFIT_GENERATORS,
    RAVEL_METRIC_REFIT_GENERATOR_TOKENS, RAVEL_METRIC_REFIT_SENT, RAVEL_METRIC_REFIT_CHANGED, RAVEL_METRIC_REFIT_COMPARED,
    RAVEL_METRIC_REFIT_BLOCKS_WHOLE, RAVEL_METRIC_REFIT_BLOCKS_SPARSE, RAVEL_METRIC_REFIT_BLOCKS_KEPT, RAVEL_METRIC_REWARD_MEAN,
    RAVEL_METRIC_REWARD_STD, RAVEL_METRIC_REWARD_MIN, RAVEL_METRIC_REWARD_MAX, RAVEL_METRIC_REWARD_ZERO_VARIANCE,
    RAVEL_METRIC_REWARD_DROPPED, RAVEL_METRIC_EVAL_REWARD, RAVEL_METRIC_RESPONSE_LENGTH_MEAN, RAVEL_METRIC_RESPONSE_LENGTH_MIN,
    RAVEL_METRIC_RESPONSE_LENGTH_MAX, RAVEL_METRIC_RESPONSE_TRUNCATED, RAVEL_METRIC_ROLLOUT_TOKENS,
    RAVEL_METRIC_ROLLOUT_TOKENS_PER_SEC, RAVEL_METRIC_ROLLOUT_STALENESS, RAVEL_METRIC_POLICY_RATIO_MEAN,
    RAVEL_METRIC_POLICY_RATIO_MAX, RAVEL_METRIC_POLICY_APPROX_KL, RAVEL_METRIC_POLICY_KL_REF, RAVEL_METRIC_POLICY_ENTROPY,
    RAVEL_METRIC_POLICY_CLIP_SHARE, RAVEL_METRIC_POLICY_GAP_MEAN, RAVEL_METRIC_POLICY_GAP_MAX, RAVEL_METRIC_TOKEN_MULT_PROB_ERROR,
    RAVEL_METRICS) = range(0, 166)
# ravel_metric_kind
(RAVEL_KIND_COUNTER, RAVEL_KIND_GAUGE, RAVEL_KIND_TIMER) = range(0, 3)
# ravel_metric_rule
(RAVEL_RULE_SUM, RAVEL_RULE_MEAN, RAVEL_RULE_STD, RAVEL_RULE_MIN, RAVEL_RULE_MAX, RAVEL_RULE_DERIVED) = range(0, 6)
# ravel_metric_show
(RAVEL_SHOW_ALL, RAVEL_SHOW_RL) = range(0, 2)
# ravel_metrics_compute
(RAVEL_COMPUTE_PADDED, RAVEL_COMPUTE_CAPACITY) = range(0, 2)
# ravel_metrics_op
(RAVEL_METRICS_SUM, RAVEL_METRICS_MAX) = range(0, 2)
# ravel_mock_mode
(RAVEL_MOCK_DISTRIBUTION, RAVEL_MOCK_FILE) = range(0, 2)
# ravel_mock_type
(RAVEL_MOCK_LOGNORMAL, RAVEL_MOCK_UNIFORM, RAVEL_MOCK_ZIPF, RAVEL_MOCK_CONSTANT, RAVEL_MOCK_BIMODAL) = range(0, 5)
# ravel_objective
(RAVEL_OBJECTIVE_AUTO, RAVEL_OBJECTIVE_TIME, RAVEL_OBJECTIVE_STEPS) = range(0, 3)
# ravel_option_type
(RAVEL_OPTION_I32, RAVEL_OPTION_I64, RAVEL_OPTION_U64, RAVEL_OPTION_F64, RAVEL_OPTION_BOOL, RAVEL_OPTION_ENUM,
    RAVEL_OPTION_STRING) = range(0, 7)
# ravel_oversize
(RAVEL_OVERSIZE_ERROR, RAVEL_OVERSIZE_SKIP, RAVEL_OVERSIZE_ALONE) = range(0, 3)
# ravel_owners
(RAVEL_OWNERS_TP0_FIRST_LAST, RAVEL_OWNERS_EVERY_RANK, RAVEL_OWNERS_ROOT_ONLY) = range(0, 3)
# ravel_pad_side
(RAVEL_PAD_RIGHT, RAVEL_PAD_LEFT, RAVEL_PAD_2D) = range(0, 3)
# ravel_phase
(RAVEL_PHASE_ROLLOUT, RAVEL_PHASE_REWARD, RAVEL_PHASE_ADVANTAGE, RAVEL_PHASE_REFERENCE, RAVEL_PHASE_FEED, RAVEL_PHASE_FORWARD,
    RAVEL_PHASE_BACKWARD, RAVEL_PHASE_ALL_REDUCE, RAVEL_PHASE_OPTIMIZER, RAVEL_PHASE_REFIT, RAVEL_PHASE_CHECKPOINT,
    RAVEL_PHASE_EVAL, RAVEL_PHASES) = range(0, 13)
# ravel_pull_state
(RAVEL_PULL_IDLE, RAVEL_PULL_NEWER, RAVEL_PULL_STAGING, RAVEL_PULL_READY) = range(0, 4)
# ravel_qk_norm
(RAVEL_QK_NORM_NONE, RAVEL_QK_NORM_HEAD, RAVEL_QK_NORM_WHOLE) = range(0, 3)
# ravel_ratio
(RAVEL_RATIO_TOKEN, RAVEL_RATIO_SEQUENCE) = range(0, 2)
# ravel_recompute
(RAVEL_RECOMPUTE_NONE, RAVEL_RECOMPUTE_ATTENTION, RAVEL_RECOMPUTE_FULL) = range(0, 3)
# ravel_reduce
(RAVEL_SUM, RAVEL_MIN, RAVEL_MAX) = range(0, 3)
# ravel_refit_cast
(RAVEL_REFIT_EXACT, RAVEL_REFIT_NARROW) = range(0, 2)
# ravel_refit_join
(RAVEL_REFIT_CONCAT, RAVEL_REFIT_QKV, RAVEL_REFIT_QKV_GROUPED) = range(0, 3)
# ravel_refit_phase
(RAVEL_REFIT_ITERATE, RAVEL_REFIT_PACK, RAVEL_REFIT_SEND, RAVEL_REFIT_RECEIVE, RAVEL_REFIT_VERIFY, RAVEL_REFIT_LOAD,
    RAVEL_REFIT_VOTE, RAVEL_REFIT_PHASES) = range(0, 8)
# ravel_refit_stage
(RAVEL_REFIT_SPARE, RAVEL_REFIT_UNDO, RAVEL_REFIT_COPY) = range(0, 3)
# ravel_rope
(RAVEL_ROPE_PLAIN, RAVEL_ROPE_LINEAR, RAVEL_ROPE_LLAMA3, RAVEL_ROPE_OTHER, RAVEL_ROPE_YARN, RAVEL_ROPE_LONG) = range(0, 6)
# ravel_row_index
(RAVEL_INDEX_AUTO, RAVEL_INDEX_ALWAYS, RAVEL_INDEX_NEVER) = range(0, 3)
# ravel_share_prefix
(RAVEL_SHARE_OFF, RAVEL_SHARE_AUTO, RAVEL_SHARE_ON) = range(0, 3)
# ravel_sink_kind
(RAVEL_SINK_LOG, RAVEL_SINK_PROGRESS, RAVEL_SINK_JSONL, RAVEL_SINK_CSV, RAVEL_SINK_TENSORBOARD, RAVEL_SINK_PROMETHEUS,
    RAVEL_SINK_HTTP, RAVEL_SINK_TRACE, RAVEL_SINKS) = range(0, 9)
# ravel_status
RAVEL_OK = 0
RAVEL_E_ARGUMENT = 1
RAVEL_E_DATA = 2
RAVEL_E_OVERSIZE = 3
RAVEL_E_OVERFLOW = 4
RAVEL_E_MEMORY = 5
RAVEL_E_IO = 6
RAVEL_E_UNSUPPORTED = 7
RAVEL_E_STATE = 8
RAVEL_E_MISMATCH = 9
RAVEL_E_CHECKSUM = 10
RAVEL_E_CALLBACK = 11
RAVEL_E_END = 12
RAVEL_E_DEVICE = 13
RAVEL_E_PEER_LOST = 20
RAVEL_E_TIMEOUT = 21
RAVEL_E_DEAD = 22
RAVEL_E_INTERNAL = 30
# ravel_sync
(RAVEL_SYNC_MICRO_STEP, RAVEL_SYNC_UPDATE, RAVEL_SYNC_PIPELINE) = range(0, 3)
# ravel_thd_arrays
RAVEL_THD_POSITIONS = 1
RAVEL_THD_SEGMENTS = 2
RAVEL_THD_PADDING = 4
RAVEL_THD_LOSS_MASK = 8
RAVEL_THD_ALL = 15
# ravel_train_on
(RAVEL_TRAIN_ON_ASSISTANT, RAVEL_TRAIN_ON_LAST, RAVEL_TRAIN_ON_ALL) = range(0, 3)
# ravel_tree_constants
RAVEL_TREE_CHUNKS = 8
# ravel_tree_method
(RAVEL_TREE_RAVEL, RAVEL_TREE_GROUPS, RAVEL_TREE_FIRST_FIT, RAVEL_TREE_CUT) = range(0, 4)

class ravel_error(C.Structure): pass
class ravel_allocator(C.Structure): pass
class ravel_logger(C.Structure): pass
class ravel_place(C.Structure): pass
class ravel_device_info(C.Structure): pass
class ravel_option(C.Structure): pass
class ravel_field(C.Structure): pass
class ravel_ragged(C.Structure): pass
class ravel_bin(C.Structure): pass
class ravel_cp(C.Structure): pass
class ravel_thd_options(C.Structure): pass
class ravel_thd(C.Structure): pass
class ravel_padded_options(C.Structure): pass
class ravel_padded(C.Structure): pass
class ravel_encoding(C.Structure): pass
class ravel_rows_options(C.Structure): pass
class ravel_row_part(C.Structure): pass
class ravel_row(C.Structure): pass
class ravel_comm_options(C.Structure): pass
class ravel_comm_hooks(C.Structure): pass
class ravel_shape(C.Structure): pass
class ravel_cost(C.Structure): pass
class ravel_plan_options(C.Structure): pass
class ravel_passes(C.Structure): pass
class ravel_cost_sample(C.Structure): pass
class ravel_cost_fit(C.Structure): pass
class ravel_plan_input(C.Structure): pass
class ravel_plan_stats(C.Structure): pass
class ravel_hybrid(C.Structure): pass
class ravel_plan(C.Structure): pass
class ravel_group(C.Structure): pass
class ravel_bubble(C.Structure): pass
class ravel_planner_options(C.Structure): pass
class ravel_planner_report(C.Structure): pass
class ravel_exchange_sizes(C.Structure): pass
class ravel_words(C.Structure): pass
class ravel_mesh_options(C.Structure): pass
class ravel_mesh_coord(C.Structure): pass
class ravel_mesh_layout(C.Structure): pass
class ravel_counts(C.Structure): pass
class ravel_sum_hook(C.Structure): pass
class ravel_weights_options(C.Structure): pass
class ravel_update_counts(C.Structure): pass
class ravel_meta(C.Structure): pass
class ravel_u128(C.Structure): pass
class ravel_lengths_sum(C.Structure): pass
class ravel_flops(C.Structure): pass
class ravel_metric(C.Structure): pass
class ravel_metrics_reducer(C.Structure): pass
class ravel_metrics_options(C.Structure): pass
class ravel_metrics_batch(C.Structure): pass
class ravel_metrics_rollouts(C.Structure): pass
class ravel_metrics_tokens(C.Structure): pass
class ravel_metrics_totals(C.Structure): pass
class ravel_order(C.Structure): pass
class ravel_cursor(C.Structure): pass
class ravel_samples(C.Structure): pass
class ravel_source_options(C.Structure): pass
class ravel_source_hooks(C.Structure): pass
class ravel_reader_stats(C.Structure): pass
class ravel_feed_options(C.Structure): pass
class ravel_feed_update(C.Structure): pass
class ravel_micro_batch(C.Structure): pass
class ravel_feed_iter(C.Structure): pass
class ravel_feed_stats(C.Structure): pass
class ravel_read_options(C.Structure): pass
class ravel_lengths(C.Structure): pass
class ravel_mock_options(C.Structure): pass
class ravel_correction(C.Structure): pass
class ravel_policy_options(C.Structure): pass
class ravel_policy_rows(C.Structure): pass
class ravel_policy_sums(C.Structure): pass
class ravel_refit_identity(C.Structure): pass
class ravel_refit_tensor(C.Structure): pass
class ravel_refit_rule(C.Structure): pass
class ravel_refit_source(C.Structure): pass
class ravel_refit_piece(C.Structure): pass
class ravel_refit_sink(C.Structure): pass
class ravel_refit_options(C.Structure): pass
class ravel_refit_report(C.Structure): pass
class ravel_publish_options(C.Structure): pass
class ravel_generator_report(C.Structure): pass
class ravel_pull_options(C.Structure): pass
class ravel_pull_report(C.Structure): pass
class ravel_routes(C.Structure): pass
class ravel_safetensor(C.Structure): pass
class ravel_safetensors_options(C.Structure): pass
class ravel_tree_input(C.Structure): pass
class ravel_tree_bin(C.Structure): pass
class ravel_tree_batch(C.Structure): pass
class ravel_tree_piece(C.Structure): pass

ravel_rank_fn = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.POINTER(ravel_error))
ravel_write = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(ravel_error))
ravel_error._fields_ = [("status", C.c_int32), ("message", C.c_char * 1020)]
ravel_allocator._fields_ = [("resize", C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_size_t)),
    ("user", C.c_void_p)]
ravel_logger._fields_ = [("write", C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_void_p)), ("user", C.c_void_p)]
ravel_place._fields_ = [("kind", C.c_int32), ("reserved", C.c_int32), ("stream", C.c_void_p)]
ravel_device_info._fields_ = [("size", C.c_size_t), ("name", C.c_char * 32), ("model", C.c_char * 96), ("index", C.c_int32),
    ("processors", C.c_int32), ("total_bytes", C.c_int64), ("free_bytes", C.c_int64), ("used_bytes", C.c_int64),
    ("cached_bytes", C.c_int64), ("driver_allocs", C.c_int64), ("uuid", C.c_uint8 * 16)]
ravel_option._fields_ = [("name", C.c_char_p), ("type", C.c_int32), ("offset", C.c_int32), ("preset", C.c_char_p),
    ("min", C.c_double), ("max", C.c_double), ("choices", C.c_char_p), ("doc", C.c_char_p)]
ravel_field._fields_ = [("name", C.c_char_p), ("kind", C.c_int32), ("dtype", C.c_int32), ("width", C.c_int64), ("data", C.c_void_p),
    ("pad", C.c_double), ("place", ravel_place)]
ravel_ragged._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("offsets", C.c_void_p), ("prompts", C.c_void_p),
    ("fields", C.POINTER(ravel_field)), ("field_count", C.c_int64)]
ravel_bin._fields_ = [("samples", C.c_void_p), ("count", C.c_int64)]
ravel_cp._fields_ = [("ranks", C.c_int32), ("kind", C.c_int32)]
ravel_thd_options._fields_ = [("size", C.c_size_t), ("align", C.c_int32), ("arrays", C.c_int32), ("total_multiple", C.c_int64),
    ("fixed_tokens", C.c_int64), ("max_samples", C.c_int64), ("max_seqlen", C.c_int64), ("cp", C.c_int32), ("cp_rank", C.c_int32),
    ("cp_kind", C.c_int32), ("reserved", C.c_int32)]
ravel_thd._fields_ = [("size", C.c_size_t), ("samples_count", C.c_int64), ("sequences", C.c_int64), ("tokens", C.c_int64),
    ("local_tokens", C.c_int64), ("actual_tokens", C.c_int64), ("max_seqlen", C.c_int64), ("max_length", C.c_int64),
    ("cu_seqlens", C.c_void_p), ("cu_seqlens_padded", C.c_void_p), ("samples", C.c_void_p), ("positions", C.c_void_p),
    ("segments", C.c_void_p), ("padding", C.c_void_p), ("loss_mask", C.c_void_p), ("fields", C.c_void_p), ("place", ravel_place),
    ("host_samples", C.c_void_p), ("host_slots", C.c_void_p), ("placed", C.c_void_p)]
ravel_padded_options._fields_ = [("size", C.c_size_t), ("side", C.c_int32), ("align", C.c_int32), ("rows", C.c_int64),
    ("columns", C.c_int64), ("responses", C.c_int64)]
ravel_padded._fields_ = [("size", C.c_size_t), ("samples_count", C.c_int64), ("rows", C.c_int64), ("columns", C.c_int64),
    ("prompt_columns", C.c_int64), ("actual_tokens", C.c_int64), ("max_length", C.c_int64), ("samples", C.c_void_p),
    ("starts", C.c_void_p), ("positions", C.c_void_p), ("attention_mask", C.c_void_p), ("loss_mask", C.c_void_p),
    ("fields", C.c_void_p), ("place", ravel_place), ("host_samples", C.c_void_p), ("host_starts", C.c_void_p),
    ("placed", C.c_void_p)]
ravel_encoding._fields_ = [("count", C.c_int64), ("ids", C.c_void_p), ("begins", C.c_void_p)]
ravel_rows_options._fields_ = [("size", C.c_size_t), ("tokenizer", C.c_void_p), ("format", C.c_void_p), ("train_on", C.c_int32),
    ("reserved", C.c_int32), ("allocator", C.POINTER(ravel_allocator)), ("variables", C.c_char_p), ("now", C.c_int64)]
ravel_row_part._fields_ = [("count", C.c_int64), ("tokens", C.c_void_p), ("loss_mask", C.c_void_p)]
ravel_row._fields_ = [("pair", C.c_int32), ("inserted", C.c_int32), ("parts", ravel_row_part * 2), ("inserted_text", C.c_char_p)]
ravel_comm_options._fields_ = [("size", C.c_size_t), ("timeout", C.c_double), ("chunk_bytes", C.c_int64), ("check", C.c_int32),
    ("shared", C.c_int32), ("module", C.c_char_p), ("allocator", C.POINTER(ravel_allocator)), ("comm", C.c_char_p),
    ("rendezvous", C.c_char_p), ("listen", C.c_char_p), ("allow", C.c_char_p), ("token_file", C.c_char_p), ("rank", C.c_int32),
    ("ranks", C.c_int32), ("queued", C.c_int32), ("tls", C.c_int32)]
ravel_comm_hooks._fields_ = [("size", C.c_size_t), ("user", C.c_void_p), ("rank", C.c_int32), ("ranks", C.c_int32),
    ("barrier", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_double, C.POINTER(ravel_error))),
    ("broadcast", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_double, C.POINTER(ravel_error))),
    ("allgatherv", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p, C.c_double, C.POINTER(ravel_error))),
    ("alltoallv", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_double, C.POINTER(ravel_error))),
    ("allreduce", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_double, C.POINTER(ravel_error))),
    ("send", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_double, C.POINTER(ravel_error))),
    ("recv", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_double, C.POINTER(ravel_error))),
    ("split", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_int32, C.c_int32, C.POINTER(ravel_comm_hooks), C.c_double, C.POINTER(ravel_error))),
    ("abort", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)), ("close", C.CFUNCTYPE(None, C.c_void_p))]
ravel_shape._fields_ = [("hidden", C.c_int64), ("layers", C.c_int64), ("heads", C.c_int64), ("kv_heads", C.c_int64),
    ("head_dim", C.c_int64), ("ffn", C.c_int64), ("vocab", C.c_int64), ("experts", C.c_int64), ("experts_active", C.c_int64),
    ("expert_ffn", C.c_int64), ("shared_ffn", C.c_int64), ("dense_layers", C.c_int64), ("max_positions", C.c_int64),
    ("tied", C.c_int32), ("qk_norm", C.c_int32), ("attention_bias", C.c_int32), ("gated", C.c_int32), ("rope_theta", C.c_double),
    ("norm_eps", C.c_double), ("q_rank", C.c_int64), ("kv_rank", C.c_int64), ("rope_dim", C.c_int64), ("v_dim", C.c_int64),
    ("window", C.c_int64), ("rope", C.c_int32), ("family", C.c_int32), ("rope_factor", C.c_double), ("rope_low", C.c_double),
    ("rope_high", C.c_double), ("rope_positions", C.c_int64), ("window_every", C.c_int64), ("rope_every", C.c_int64),
    ("rope_local", C.c_double), ("attention_scale", C.c_double), ("embedding_scale", C.c_double), ("residual_scale", C.c_double),
    ("logits_scale", C.c_double), ("dense_mask", C.c_uint64 * 2), ("router_norm", C.c_int64), ("router_aux", C.c_double),
    ("rope_attention", C.c_double), ("rope_exact", C.c_int32), ("rope_always", C.c_int32), ("rope_short", C.c_float * 64),
    ("rope_long", C.c_float * 64)]
ravel_cost._fields_ = [("linear", C.c_int64), ("quadratic", C.c_int64), ("overhead", C.c_int64)]
ravel_plan_options._fields_ = [("size", C.c_size_t), ("budget", C.c_int64), ("cp", C.c_int32), ("align", C.c_int32),
    ("max_samples", C.c_int64), ("dp", C.c_int32), ("multiple", C.c_int32), ("min_micro_steps", C.c_int64), ("updates", C.c_int32),
    ("sync", C.c_int32), ("samples_per_update", C.c_int64), ("layout", C.c_int32), ("method", C.c_int32), ("effort", C.c_int32),
    ("group_rule", C.c_int32), ("count", C.c_int64), ("oversize", C.c_int32), ("shuffle", C.c_int32), ("seed", C.c_uint64),
    ("cost", ravel_cost), ("allocator", C.POINTER(ravel_allocator)), ("objective", C.c_int32), ("cp_split", C.c_int32),
    ("cp_pool", C.c_int32), ("min_cp", C.c_int32), ("cp_widths", C.c_char_p), ("cp_price", C.c_char_p), ("cp_node", C.c_int32),
    ("cp_tp", C.c_int32), ("cp_empty", C.c_int32), ("tree_method", C.c_int32)]
ravel_passes._fields_ = [("layers", C.c_int32), ("head", C.c_int32), ("attention", C.c_int32)]
ravel_cost_sample._fields_ = [("tokens", C.c_double), ("squares", C.c_double), ("micro_steps", C.c_double), ("seconds", C.c_double),
    ("width", C.c_int32), ("reserved", C.c_int32)]
ravel_cost_fit._fields_ = [("size", C.c_size_t), ("cost", ravel_cost), ("unit", C.c_double), ("error", C.c_double),
    ("worst_error", C.c_double), ("samples", C.c_int64), ("widths", C.c_int32), ("width", C.c_int32 * 14),
    ("price", C.c_int32 * 14), ("apart_error", C.c_double), ("apart_worst", C.c_double), ("far", C.c_int64)]
ravel_plan_input._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("lengths", C.c_void_p), ("prompts", C.c_void_p),
    ("responses", C.c_void_p), ("costs", C.c_void_p), ("groups", C.c_void_p), ("updates", C.c_void_p), ("homes", C.c_void_p),
    ("versions", C.c_void_p), ("deadlines", C.c_void_p), ("shared", C.c_void_p), ("order", C.c_void_p)]
ravel_plan_stats._fields_ = [("samples", C.c_int64), ("skipped", C.c_int64), ("bins", C.c_int64), ("bins_packed", C.c_int64),
    ("bins_lower_bound", C.c_int64), ("fillers", C.c_int64), ("micro_steps", C.c_int64), ("micro_steps_lower_bound", C.c_int64),
    ("capacity_tokens", C.c_int64), ("padded_tokens", C.c_int64), ("actual_tokens", C.c_int64), ("longest", C.c_int64),
    ("over_budget", C.c_int64), ("cost", C.c_int64), ("cost_shift", C.c_int64), ("time", C.c_int64),
    ("time_lower_bound", C.c_int64), ("time_micro_step", C.c_int64), ("time_update", C.c_int64), ("tokens_moved", C.c_int64),
    ("fill", C.c_double), ("padding", C.c_double), ("idle_micro_step", C.c_double), ("idle_update", C.c_double),
    ("slowdown", C.c_double), ("imbalance", C.c_double), ("flat_tokens", C.c_int64), ("unique_tokens", C.c_int64)]
ravel_hybrid._fields_ = [("pool", C.c_int32), ("reserved", C.c_int32), ("groups", C.c_int64), ("group_offsets", C.c_void_p),
    ("group_first", C.c_void_p), ("group_width", C.c_void_p), ("group_sample_offsets", C.c_void_p), ("rank_group", C.c_void_p),
    ("bound_micro_steps", C.c_int64), ("bound_area", C.c_int64), ("bound_longest", C.c_int64), ("bound_canonical", C.c_int64)]
ravel_plan._fields_ = [("count", C.c_int64), ("updates", C.c_int64), ("micro_steps", C.c_int64), ("bins", C.c_int64),
    ("dp", C.c_int32), ("reserved", C.c_int32), ("update_offsets", C.c_void_p), ("bin_offsets", C.c_void_p),
    ("samples", C.c_void_p), ("bin_tokens", C.c_void_p), ("bin_slots", C.c_void_p), ("bin_costs", C.c_void_p),
    ("skipped", C.c_void_p), ("digest", C.c_uint64), ("stats", ravel_plan_stats), ("hybrid", C.POINTER(ravel_hybrid)),
    ("shared", C.c_void_p)]
ravel_group._fields_ = [("samples", C.c_void_p), ("count", C.c_int64), ("first", C.c_int32), ("width", C.c_int32)]
ravel_bubble._fields_ = [("time", C.c_double), ("busy", C.c_double), ("share", C.c_double)]
ravel_planner_options._fields_ = [("size", C.c_size_t), ("fill", C.c_double), ("idle", C.c_double), ("max_wait", C.c_int64),
    ("max_stale", C.c_int64)]
ravel_planner_report._fields_ = [("size", C.c_size_t), ("samples", C.c_int64), ("micro_steps", C.c_int64), ("forced", C.c_int64),
    ("count", C.c_int64 * 8), ("wait_mean", C.c_double * 8), ("wait_max", C.c_int64 * 8), ("steps_max", C.c_int64),
    ("stale_mean", C.c_double), ("stale_max", C.c_int64)]
ravel_exchange_sizes._fields_ = [("samples", C.c_int64), ("tokens", C.c_int64), ("result_bytes", C.c_int64),
    ("scratch_bytes", C.c_int64), ("sent_bytes", C.c_int64), ("needed_bytes", C.c_int64), ("kept_bytes", C.c_int64)]
ravel_words._fields_ = [("at", C.c_void_p), ("count", C.c_int64), ("room", C.c_size_t), ("allocator", C.POINTER(ravel_allocator))]
ravel_mesh_options._fields_ = [("size", C.c_size_t), ("tp", C.c_int32), ("cp", C.c_int32), ("dp", C.c_int32), ("pp", C.c_int32),
    ("vpp", C.c_int32), ("reserved", C.c_int32), ("order", C.c_char_p)]
ravel_mesh_coord._fields_ = [("tp", C.c_int32), ("cp", C.c_int32), ("dp", C.c_int32), ("pp", C.c_int32)]
ravel_mesh_layout._fields_ = [("sizes", C.c_int32 * 4), ("strides", C.c_int32 * 4), ("ranks", C.c_int32), ("vpp", C.c_int32),
    ("order", C.c_int32 * 4)]
ravel_counts._fields_ = [("samples", C.c_int64), ("samples_with_loss", C.c_int64), ("tokens", C.c_int64),
    ("loss_tokens", C.c_int64), ("weight", C.c_int64 * 3), ("weight_with_loss", C.c_int64 * 3), ("weighted_tokens", C.c_int64 * 3)]
ravel_sum_hook._fields_ = [("sum", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(ravel_error))),
    ("user", C.c_void_p)]
ravel_weights_options._fields_ = [("size", C.c_size_t), ("mode", C.c_int32), ("empty", C.c_int32), ("divisor", C.c_int64),
    ("dp", C.c_int32), ("dp_reduce", C.c_int32), ("micro_steps", C.c_int64), ("cp", C.c_int32), ("cp_reduce", C.c_int32),
    ("step_reduce", C.c_int32), ("reserved", C.c_int32), ("place", ravel_place)]
ravel_update_counts._fields_ = [("micro_steps", C.c_int64), ("samples", C.c_int64), ("tokens", C.c_int64),
    ("squares_low", C.c_uint64), ("squares_high", C.c_int64), ("loss_tokens", C.c_int64), ("loss_samples", C.c_int64),
    ("padded_tokens", C.c_int64), ("capacity_tokens", C.c_int64), ("bins", C.c_int64), ("fillers", C.c_int64),
    ("shortest", C.c_int64), ("longest", C.c_int64), ("shared_tokens", C.c_int64), ("skipped", C.c_int64)]
ravel_meta._fields_ = [("size", C.c_size_t), ("flags", C.c_int64), ("updates", C.c_int64), ("micro_steps", C.c_int64),
    ("samples", C.c_int64), ("epoch", C.c_int64), ("position", C.c_int64), ("batch", C.c_int64),
    ("counts", C.POINTER(ravel_update_counts)), ("loss_counts", C.POINTER(ravel_counts)), ("bin_samples", C.c_void_p),
    ("group_first", C.c_void_p), ("group_width", C.c_void_p), ("lengths", C.c_void_p), ("ids", C.c_void_p), ("parts", C.c_void_p),
    ("loss_tokens", C.c_void_p), ("shared", C.c_void_p), ("prompts", C.c_void_p)]
ravel_u128._fields_ = [("high", C.c_uint64), ("low", C.c_uint64)]
ravel_lengths_sum._fields_ = [("samples", C.c_int64), ("tokens", C.c_int64), ("squares", ravel_u128), ("shortest", C.c_int64),
    ("longest", C.c_int64)]
ravel_flops._fields_ = [("forward", ravel_u128), ("backward", ravel_u128), ("recompute", ravel_u128), ("model", ravel_u128),
    ("hardware", ravel_u128)]
ravel_metric._fields_ = [("name", C.c_char_p), ("unit", C.c_char_p), ("doc", C.c_char_p), ("kind", C.c_int32), ("rule", C.c_int32),
    ("show", C.c_int32), ("reserved", C.c_int32)]
ravel_metrics_reducer._fields_ = [("rank", C.c_int32), ("size", C.c_int32),
    ("all_reduce", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int, C.POINTER(ravel_error))), ("user", C.c_void_p)]
ravel_metrics_options._fields_ = [("size", C.c_size_t), ("world", C.c_int64), ("updates", C.c_int64), ("seq_length", C.c_int64),
    ("peak_flops", C.c_double), ("gpu", C.c_char_p), ("rl", C.c_int32), ("counts", C.c_int32), ("compute", C.c_int32),
    ("recompute", C.c_int32), ("per_rank", C.c_int32), ("update_peaks", C.c_int32), ("shape", C.POINTER(ravel_shape)),
    ("reducer", C.POINTER(ravel_metrics_reducer)), ("extra", C.POINTER(ravel_metric)), ("extra_count", C.c_int64),
    ("logger", C.POINTER(ravel_logger)), ("allocator", C.POINTER(ravel_allocator)), ("adapter", C.c_int64)]
ravel_metrics_batch._fields_ = [("size", C.c_size_t), ("lengths", C.c_void_p), ("samples", C.c_int64),
    ("sum", C.POINTER(ravel_lengths_sum)), ("capacity", C.c_int64), ("padded", C.c_int64), ("loss", C.c_int64), ("head", C.c_int64),
    ("bins", C.c_int64), ("fillers", C.c_int64), ("micro_steps", C.c_int64), ("shared", C.c_int64)]
ravel_metrics_rollouts._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("rewards", C.c_void_p), ("groups", C.c_void_p),
    ("responses", C.c_void_p), ("truncated", C.c_void_p), ("staleness", C.c_void_p)]
ravel_metrics_tokens._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("weights", C.c_void_p), ("logprobs", C.c_void_p),
    ("old", C.c_void_p), ("generator", C.c_void_p), ("trainer", C.c_void_p), ("reference", C.c_void_p), ("entropy", C.c_void_p),
    ("advantages", C.c_void_p), ("clip_low", C.c_double), ("clip_high", C.c_double)]
ravel_metrics_totals._fields_ = [("updates", C.c_int64), ("samples", C.c_int64), ("bins", C.c_int64), ("tokens", C.c_int64),
    ("loss_tokens", C.c_int64), ("capacity", C.c_int64), ("computed", C.c_int64), ("seconds", C.c_double),
    ("phases", C.c_double * 16)]
ravel_order._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("epochs", C.c_int64), ("seed", C.c_uint64),
    ("shuffle", C.c_int32), ("drop_last", C.c_int32)]
ravel_cursor._fields_ = [("epoch", C.c_int64), ("position", C.c_int64)]
ravel_samples._fields_ = [("ragged", ravel_ragged), ("rows", C.c_void_p), ("parts", C.c_void_p), ("inserted", C.c_int64),
    ("inserted_text", C.c_char_p)]
ravel_source_options._fields_ = [("size", C.c_size_t), ("data", C.c_char_p), ("mock", C.c_char_p), ("vocab", C.c_int64),
    ("fields", C.c_char_p), ("bos", C.c_int32), ("eos", C.c_int32), ("truncate", C.c_int64), ("bad_rows", C.c_int32),
    ("no_pairs", C.c_int32), ("first_row", C.c_int64), ("end_row", C.c_int64), ("allocator", C.POINTER(ravel_allocator)),
    ("tokenizer", C.c_char_p), ("chat_format", C.c_char_p), ("train_on", C.c_int32), ("index", C.c_int32),
    ("chat_args", C.c_char_p)]
ravel_source_hooks._fields_ = [("size", C.c_size_t), ("user", C.c_void_p), ("count", C.c_int64), ("fields", C.POINTER(ravel_field)),
    ("field_count", C.c_int64), ("read", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error))),
    ("close", C.CFUNCTYPE(None, C.c_void_p)), ("allocator", C.POINTER(ravel_allocator)),
    ("where", C.CFUNCTYPE(C.c_size_t, C.c_void_p, C.c_int64, C.c_void_p, C.c_size_t))]
ravel_reader_stats._fields_ = [("rows", C.c_int64), ("samples", C.c_int64), ("tokens", C.c_int64), ("skipped", C.c_int64),
    ("truncated", C.c_int64)]
ravel_feed_options._fields_ = [("size", C.c_size_t), ("owners", C.c_int32), ("prefetch", C.c_int32), ("samples", C.c_int64),
    ("updates", C.c_int64), ("epochs", C.c_int64), ("shuffle_seed", C.c_uint64), ("shuffle", C.c_int32), ("drop_last", C.c_int32),
    ("cp_kind", C.c_int32), ("segments", C.c_int32), ("padding", C.c_int32), ("fixed_shape", C.c_int32),
    ("total_multiple", C.c_int64), ("pad_token", C.c_int32), ("reserved", C.c_int32), ("first_fields", C.c_char_p),
    ("last_fields", C.c_char_p), ("ask", C.c_uint64), ("plan", C.POINTER(ravel_plan_options)),
    ("weights", C.POINTER(ravel_weights_options)), ("fields", C.POINTER(ravel_field)), ("field_count", C.c_int64),
    ("logger", C.POINTER(ravel_logger)), ("allocator", C.POINTER(ravel_allocator)), ("share_prefix", C.c_int32),
    ("keep_rows", C.c_int32), ("share_limit", C.c_int64)]
ravel_feed_update._fields_ = [("number", C.c_int64), ("batch", C.c_int64), ("update_in_batch", C.c_int64), ("cursor", ravel_cursor),
    ("last_in_batch", C.c_int32), ("reserved", C.c_int32), ("counts", ravel_update_counts), ("loss_counts", ravel_counts),
    ("mine", ravel_update_counts), ("weights", ravel_weights_options), ("plan", C.POINTER(ravel_plan_stats)),
    ("phase_sec", C.c_double * 8), ("prepare_sec", C.c_double), ("exposed_sec", C.c_double), ("sent_bytes", C.c_int64),
    ("needed_bytes", C.c_int64), ("kept_bytes", C.c_int64)]
ravel_micro_batch._fields_ = [("step", C.c_int64), ("chunk", C.c_int32), ("filler", C.c_int32), ("first", C.c_int32),
    ("last", C.c_int32), ("thd", C.POINTER(ravel_thd)), ("fields", C.POINTER(ravel_field)), ("field_count", C.c_int64),
    ("tokens", C.c_void_p), ("labels", C.c_void_p), ("weights", C.c_void_p), ("offsets", C.c_void_p), ("lengths", C.c_void_p),
    ("shared", C.c_void_p), ("prompts", C.c_void_p), ("ids", C.c_void_p), ("parts", C.c_void_p), ("loss_tokens", C.c_void_p),
    ("cp", C.c_int32), ("cp_rank", C.c_int32), ("cp_first", C.c_int32), ("reserved", C.c_int32)]
ravel_feed_iter._fields_ = [("feed", C.c_void_p), ("step", C.c_int64), ("chunk", C.c_int32), ("reserved", C.c_int32)]
ravel_feed_stats._fields_ = [("batches", C.c_int64), ("updates", C.c_int64), ("phase_sec", C.c_double * 8),
    ("prepare_sec", C.c_double), ("exposed_sec", C.c_double), ("sent_bytes", C.c_int64), ("needed_bytes", C.c_int64),
    ("kept_bytes", C.c_int64), ("memory_bytes", C.c_int64), ("reader", ravel_reader_stats)]
ravel_read_options._fields_ = [("size", C.c_size_t), ("format", C.c_int32), ("reserved", C.c_int32), ("field", C.c_char_p),
    ("limit", C.c_int64), ("progress", C.CFUNCTYPE(None, C.c_void_p, C.c_int64, C.c_int64)), ("user", C.c_void_p),
    ("allocator", C.POINTER(ravel_allocator))]
ravel_lengths._fields_ = [("count", C.c_int64), ("lengths", C.c_void_p), ("prompts", C.c_void_p), ("responses", C.c_void_p),
    ("longest", C.c_int64), ("total", C.c_int64), ("columns", C.c_char * 96), ("lines", C.c_void_p)]
ravel_mock_options._fields_ = [("size", C.c_size_t), ("mode", C.c_int32), ("type", C.c_int32), ("min_seq_len", C.c_int64),
    ("max_seq_len", C.c_int64), ("mean_seq_len", C.c_double), ("lognormal_sigma", C.c_double), ("zipf_exponent", C.c_double),
    ("long_seq_len", C.c_double), ("long_share", C.c_double), ("prompt_share", C.c_double), ("count", C.c_int64),
    ("seed", C.c_uint64), ("path", C.c_char_p), ("field", C.c_char_p), ("allocator", C.POINTER(ravel_allocator))]
ravel_correction._fields_ = [("kind", C.c_int32), ("sequence", C.c_int32), ("masked", C.c_int32), ("now", C.c_int32),
    ("low", C.c_double), ("high", C.c_double), ("name", C.c_char_p), ("paper", C.c_char_p)]
ravel_policy_options._fields_ = [("size", C.c_size_t), ("ratio", C.c_int32), ("kl_kind", C.c_int32), ("clip_low", C.c_double),
    ("clip_high", C.c_double), ("dual_clip", C.c_double), ("kl", C.c_double), ("correction", C.c_int32),
    ("correction_low", C.c_double), ("correction_high", C.c_double)]
ravel_policy_rows._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("logprobs", C.c_void_p), ("old", C.c_void_p),
    ("generator", C.c_void_p), ("reference", C.c_void_p), ("advantages", C.c_void_p), ("weights", C.c_void_p),
    ("samples", C.c_void_p), ("sample_count", C.c_int64)]
ravel_policy_sums._fields_ = [("loss", C.c_double), ("tokens", C.c_double), ("ratio", C.c_double), ("ratio_max", C.c_double),
    ("clipped", C.c_double), ("approx_kl", C.c_double), ("kl", C.c_double), ("corrected", C.c_double), ("weight", C.c_double),
    ("weight_square", C.c_double), ("raw_square", C.c_double), ("outside", C.c_double)]
ravel_refit_identity._fields_ = [("version", C.c_int64), ("nonce", C.c_uint64), ("digest", C.c_uint64)]
ravel_refit_tensor._fields_ = [("name", C.c_char_p), ("dtype", C.c_int32), ("ndim", C.c_int32), ("dims", C.c_int64 * 6),
    ("parts", C.c_int32 * 6), ("index", C.c_int32 * 6), ("start", C.c_int64 * 6), ("extent", C.c_int64 * 6),
    ("strides", C.c_int64 * 6), ("data", C.c_void_p), ("spare", C.c_void_p), ("place", ravel_place)]
ravel_refit_rule._fields_ = [("name", C.c_char_p), ("parts", C.c_char_p), ("join", C.c_int32), ("dim", C.c_int32),
    ("heads", C.c_int64), ("kv_heads", C.c_int64), ("shares", C.c_int64 * 8), ("stack", C.c_int64), ("map", C.c_void_p)]
ravel_refit_source._fields_ = [("size", C.c_size_t), ("tensors", C.POINTER(ravel_refit_tensor)), ("count", C.c_int64),
    ("rules", C.POINTER(ravel_refit_rule)), ("rule_count", C.c_int64),
    ("iterate", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error))), ("user", C.c_void_p)]
ravel_refit_piece._fields_ = [("tensor", C.c_int64), ("first", C.c_int64), ("count", C.c_int64), ("dtype", C.c_int32),
    ("reserved", C.c_int32), ("data", C.c_void_p), ("place", ravel_place)]
ravel_refit_sink._fields_ = [("size", C.c_size_t), ("tensors", C.POINTER(ravel_refit_tensor)), ("count", C.c_int64),
    ("rules", C.POINTER(ravel_refit_rule)), ("rule_count", C.c_int64), ("version", C.c_int64),
    ("begin", C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int64, C.POINTER(ravel_error))),
    ("load", C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(ravel_refit_piece), C.POINTER(ravel_error))),
    ("commit", C.CFUNCTYPE(None, C.c_void_p, C.c_int64)), ("abort", C.CFUNCTYPE(None, C.c_void_p, C.c_int64)), ("user", C.c_void_p)]
ravel_refit_options._fields_ = [("size", C.c_size_t), ("num_buffers", C.c_int32), ("cast", C.c_int32), ("buffer_bytes", C.c_int64),
    ("memory_ratio", C.c_double), ("stage", C.c_int32), ("delta", C.c_int32), ("delta_block", C.c_int64), ("timeout", C.c_double),
    ("ignore_extra", C.c_int32), ("trace", C.c_int32), ("audit", C.c_int32), ("threads", C.c_int32),
    ("progress", C.CFUNCTYPE(None, C.c_void_p, C.c_int64, C.c_int64)), ("progress_user", C.c_void_p),
    ("allocator", C.POINTER(ravel_allocator)), ("logger", C.POINTER(ravel_logger)), ("sparse", C.c_int32)]
ravel_refit_report._fields_ = [("size", C.c_size_t), ("version", C.c_int64), ("bytes_needed", C.c_int64),
    ("bytes_moved", C.c_int64), ("bytes_kept", C.c_int64), ("frames", C.c_int64), ("tensors", C.c_int64), ("my_bytes", C.c_int64),
    ("buffer_bytes", C.c_int64), ("num_buffers", C.c_int32), ("live", C.c_int32), ("senders", C.c_int32), ("receivers", C.c_int32),
    ("served", C.c_int32), ("delta", C.c_int32), ("seconds", C.c_double), ("phase", C.c_double * 7), ("phase_most", C.c_double * 7),
    ("overlap", C.c_double), ("gb_per_second", C.c_double), ("peak_bytes", C.c_int64), ("stage_bytes", C.c_int64),
    ("peak_most", C.c_int64), ("bytes_sparse", C.c_int64)]
ravel_publish_options._fields_ = [("size", C.c_size_t), ("keep", C.c_int32), ("threads", C.c_int32), ("block_bytes", C.c_int64),
    ("dtype", C.c_int32), ("open", C.c_int32), ("token", C.c_char_p), ("allow", C.c_char_p), ("host", C.c_char_p),
    ("max_links", C.c_int32), ("tls", C.c_int32), ("timeout", C.c_double), ("sparse", C.c_int32),
    ("allocator", C.POINTER(ravel_allocator)), ("logger", C.POINTER(ravel_logger))]
ravel_generator_report._fields_ = [("generator", C.c_uint64), ("held", ravel_refit_identity), ("lag", C.c_int64),
    ("ranks", C.c_int32), ("connected", C.c_int32), ("prepare_seconds", C.c_double), ("pause_seconds", C.c_double),
    ("tokens_per_second", C.c_double), ("bytes", C.c_int64), ("commits", C.c_int64), ("age_seconds", C.c_double),
    ("bytes_needed", C.c_int64), ("changed_share", C.c_double)]
ravel_pull_options._fields_ = [("size", C.c_size_t), ("threads", C.c_int32), ("stage", C.c_int32), ("cast", C.c_int32),
    ("delta", C.c_int32), ("audit", C.c_int32), ("tls", C.c_int32), ("timeout", C.c_double), ("token", C.c_char_p),
    ("allocator", C.POINTER(ravel_allocator)), ("logger", C.POINTER(ravel_logger))]
ravel_pull_report._fields_ = [("size", C.c_size_t), ("identity", ravel_refit_identity), ("bytes_needed", C.c_int64),
    ("bytes_pulled", C.c_int64), ("bytes_kept", C.c_int64), ("live", C.c_int32), ("senders", C.c_int32),
    ("prepare_seconds", C.c_double), ("pause_seconds", C.c_double), ("lag", C.c_int64), ("mapped", C.c_int32),
    ("reserved", C.c_int32), ("bytes_sparse", C.c_int64), ("bytes_changes", C.c_int64), ("elements", C.c_int64),
    ("changed", C.c_int64), ("compared", C.c_int64)]
ravel_routes._fields_ = [("layers", C.c_int32), ("topk", C.c_int32), ("experts", C.c_int32), ("dtype", C.c_int32)]
ravel_safetensor._fields_ = [("name", C.c_char_p), ("dtype", C.c_int32), ("rank", C.c_int32), ("dims", C.c_void_p),
    ("count", C.c_int64), ("bytes", C.c_int64), ("data", C.c_void_p), ("aligned", C.c_int32), ("shard", C.c_int32)]
ravel_safetensors_options._fields_ = [("size", C.c_size_t), ("durability", C.c_int32), ("reserved", C.c_int32),
    ("allocator", C.POINTER(ravel_allocator))]
ravel_tree_input._fields_ = [("size", C.c_size_t), ("count", C.c_int64), ("offsets", C.c_void_p), ("ids", C.c_void_p),
    ("sample_keys", C.c_void_p), ("token_keys", C.c_void_p), ("allocator", C.POINTER(ravel_allocator))]
ravel_tree_bin._fields_ = [("cu_seqlens", C.c_void_p), ("shared", C.c_void_p), ("count", C.c_int64)]
ravel_tree_batch._fields_ = [("size", C.c_size_t), ("samples", C.c_int64), ("unique", C.c_int64), ("tokens", C.c_int64),
    ("path_tokens", C.c_int64), ("runs", C.c_int64), ("keys", C.c_int64), ("longest", C.c_int64), ("longest_own", C.c_int64),
    ("nodes_most", C.c_int64), ("nodes", C.c_int64), ("levels", C.c_int64), ("starts", C.c_void_p), ("positions", C.c_void_p),
    ("path", C.c_void_p), ("limits", C.c_void_p), ("parents", C.c_void_p), ("cu_seqlens_q", C.c_void_p),
    ("cu_seqlens_k", C.c_void_p), ("gather", C.c_void_p), ("node_of", C.c_void_p), ("node_first", C.c_void_p),
    ("node_last", C.c_void_p), ("node_end", C.c_void_p), ("node_parent", C.c_void_p), ("node_level", C.c_void_p),
    ("level_nodes", C.c_void_p), ("level_offsets", C.c_void_p)]
ravel_tree_piece._fields_ = [("size", C.c_size_t), ("tokens", C.c_int64), ("runs", C.c_int64), ("keys", C.c_int64),
    ("places", C.c_void_p), ("query_starts", C.c_void_p), ("cu_seqlens_q", C.c_void_p), ("cu_seqlens_k", C.c_void_p),
    ("gather", C.c_void_p)]

FUNCTIONS = {
    "ravel_advantages": (C.c_int, [C.c_int32, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_agree": (C.c_int, [C.c_void_p, C.c_int, C.POINTER(ravel_error)]),
    "ravel_chat_format_at": (C.c_char_p, [C.c_int32]),
    "ravel_chat_format_free": (None, [C.c_void_p]),
    "ravel_chat_format_name": (C.c_char_p, [C.c_void_p]),
    "ravel_chat_format_of": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_chat_format_open": (C.c_int, [C.c_char_p, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_collector_add": (C.c_int, [C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_collector_add_packed": (C.c_int, [C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_collector_inserted": (None, [C.c_void_p, C.c_int64, C.c_char_p]),
    "ravel_comm_abort": (None, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_alive": (C.c_int, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_allgather": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_allgatherv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_allreduce": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_alltoall": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_alltoallv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_auto_kind": (C.c_char_p, [C.POINTER(ravel_comm_options)]),
    "ravel_comm_barrier": (C.c_int, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_broadcast": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_callbacks": (C.c_int, [C.POINTER(ravel_comm_hooks), C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_dup": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_free": (None, [C.c_void_p]),
    "ravel_comm_host": (C.c_void_p, [C.c_void_p]),
    "ravel_comm_iallgatherv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_ialltoallv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_ibarrier": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_ibroadcast": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_irecv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_isend": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_kind": (C.c_char_p, [C.c_void_p]),
    "ravel_comm_local_rank": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_lost_rank": (C.c_int32, [C.c_void_p]),
    "ravel_comm_mpi": (C.c_int, [C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_name": (C.c_char_p, [C.c_void_p]),
    "ravel_comm_nccl": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_nccl_find": (C.c_int, [C.POINTER(ravel_error)]),
    "ravel_comm_neighbours": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_open": (C.c_int, [C.c_char_p, C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_option_table": (C.POINTER(ravel_option), []),
    "ravel_comm_options_default": (None, [C.POINTER(ravel_comm_options)]),
    "ravel_comm_place_check": (C.c_int, [C.c_void_p, C.POINTER(ravel_place), C.POINTER(ravel_error)]),
    "ravel_comm_rank": (C.c_int32, [C.c_void_p]),
    "ravel_comm_recv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_reduce": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_reduce_scatter": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_reduce_scatterv": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_self": (C.c_int, [C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_send": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_comm_set_name": (None, [C.c_void_p, C.c_char_p]),
    "ravel_comm_set_timeout": (None, [C.c_void_p, C.c_double]),
    "ravel_comm_size": (C.c_int32, [C.c_void_p]),
    "ravel_comm_split": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_tcp": (C.c_int, [C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_threads": (C.c_int, [C.c_int32, C.POINTER(ravel_comm_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_comm_timeout": (C.c_double, [C.c_void_p]),
    "ravel_compare": (C.c_int, [C.c_void_p, C.c_uint64, C.POINTER(ravel_error)]),
    "ravel_cost_fit_make": (C.c_int, [C.POINTER(ravel_cost_sample), C.c_int64, C.POINTER(ravel_cost_fit), C.POINTER(ravel_error)]),
    "ravel_cost_from_passes": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_passes), C.POINTER(ravel_cost), C.POINTER(ravel_error)]),
    "ravel_cost_from_shape": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_cost), C.POINTER(ravel_error)]),
    "ravel_cost_parse": (C.c_int, [C.c_char_p, C.POINTER(ravel_cost), C.POINTER(ravel_error)]),
    "ravel_cost_read": (C.c_int, [C.c_char_p, C.POINTER(ravel_cost), C.c_char_p, C.c_size_t, C.POINTER(ravel_error)]),
    "ravel_counts_add": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_bin), C.POINTER(ravel_field), C.c_void_p, C.POINTER(ravel_counts), C.POINTER(ravel_error)]),
    "ravel_counts_sample": (C.c_int, [C.POINTER(ravel_ragged), C.c_int64, C.POINTER(ravel_field), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_counts_sum": (C.c_int, [C.POINTER(ravel_counts), C.POINTER(ravel_sum_hook), C.POINTER(ravel_error)]),
    "ravel_cp_gather": (C.c_int, [C.POINTER(ravel_cp), C.c_int32, C.c_void_p, C.c_int64, C.c_void_p, C.c_size_t, C.c_void_p, C.POINTER(ravel_place), C.POINTER(ravel_error)]),
    "ravel_cp_scatter": (C.c_int, [C.POINTER(ravel_cp), C.c_int32, C.c_void_p, C.c_int64, C.c_void_p, C.c_size_t, C.c_void_p, C.POINTER(ravel_place), C.POINTER(ravel_error)]),
    "ravel_cursor_format": (C.c_size_t, [C.POINTER(ravel_order), ravel_cursor, C.c_char_p, C.c_size_t]),
    "ravel_cursor_parse": (C.c_int, [C.POINTER(ravel_order), C.c_char_p, C.c_size_t, C.POINTER(ravel_cursor), C.POINTER(ravel_error)]),
    "ravel_device_alloc": (C.c_int, [C.c_void_p, C.c_int32, C.c_size_t, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_device_copy": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_device_fill": (C.c_int, [C.c_void_p, C.c_void_p, C.c_uint8, C.c_size_t, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_device_free": (None, [C.c_void_p]),
    "ravel_device_get_info": (C.c_int, [C.c_void_p, C.POINTER(ravel_device_info), C.POINTER(ravel_error)]),
    "ravel_device_open": (C.c_int, [C.c_char_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_device_release": (None, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ravel_dtype_bytes": (C.c_int32, [C.c_int32]),
    "ravel_dtype_convert": (C.c_int, [C.c_int32, C.c_void_p, C.c_int32, C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_dtype_kind": (C.c_char, [C.c_int32]),
    "ravel_dtype_load": (C.c_int, [C.c_int32, C.c_void_p, C.c_void_p]),
    "ravel_dtype_name": (C.c_char_p, [C.c_int32]),
    "ravel_dtype_parse": (C.c_int, [C.c_char_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_dtype_store": (C.c_int, [C.c_int32, C.c_void_p, C.c_double]),
    "ravel_encoder_create": (C.c_int, [C.c_void_p, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_encoder_encode": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_encoder_free": (None, [C.c_void_p]),
    "ravel_error_clear": (None, [C.POINTER(ravel_error)]),
    "ravel_error_prefix": (None, [C.POINTER(ravel_error), C.c_char_p]),
    "ravel_error_set": (C.c_int, [C.POINTER(ravel_error), C.c_int, C.c_char_p]),
    "ravel_event_create": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_event_elapsed": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_event_free": (None, [C.c_void_p]),
    "ravel_event_order": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_event_record": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_event_test": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_event_wait": (C.c_int, [C.c_void_p, C.c_double, C.POINTER(ravel_error)]),
    "ravel_exchange_create": (C.c_int, [C.POINTER(ravel_plan), C.c_void_p, C.c_void_p, C.c_int32, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_exchange_cut": (C.c_int, [C.c_void_p, C.POINTER(ravel_cp), C.c_int32, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_exchange_cut_groups": (C.c_int, [C.c_void_p, C.POINTER(ravel_plan_options), C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_exchange_free": (None, [C.c_void_p]),
    "ravel_exchange_measure": (None, [C.c_void_p, C.POINTER(ravel_ragged), C.POINTER(ravel_exchange_sizes)]),
    "ravel_exchange_run": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_ragged), C.c_void_p, C.c_void_p, C.POINTER(ravel_ragged), C.POINTER(ravel_error)]),
    "ravel_exchange_samples": (C.c_void_p, [C.c_void_p]),
    "ravel_feed_batch": (None, [C.POINTER(ravel_update_counts), C.POINTER(ravel_lengths_sum), C.POINTER(ravel_metrics_batch)]),
    "ravel_feed_bound": (C.c_int64, [C.c_void_p, C.c_int64, C.c_int64, C.c_int64]),
    "ravel_feed_create": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_feed_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_feed_cursor": (ravel_cursor, [C.c_void_p]),
    "ravel_feed_find": (C.c_int64, [C.c_void_p, C.c_char_p]),
    "ravel_feed_free": (None, [C.c_void_p]),
    "ravel_feed_is_owner": (C.c_int32, [C.c_void_p]),
    "ravel_feed_iter_next": (C.c_int, [C.POINTER(ravel_feed_iter), C.POINTER(ravel_micro_batch)]),
    "ravel_feed_iterate": (ravel_feed_iter, [C.c_void_p, C.c_int32]),
    "ravel_feed_micro": (C.c_int, [C.c_void_p, C.c_int32, C.c_int64, C.POINTER(ravel_micro_batch), C.POINTER(ravel_error)]),
    "ravel_feed_next": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_feed_option_table": (C.POINTER(ravel_option), []),
    "ravel_feed_options_default": (None, [C.POINTER(ravel_feed_options)]),
    "ravel_feed_order": (C.POINTER(ravel_order), [C.c_void_p]),
    "ravel_feed_phase_name": (C.c_char_p, [C.c_int32]),
    "ravel_feed_read_stats": (None, [C.c_void_p, C.POINTER(ravel_feed_stats)]),
    "ravel_feed_seek": (C.c_int, [C.c_void_p, ravel_cursor, C.POINTER(ravel_error)]),
    "ravel_feed_submit": (C.c_int, [C.c_void_p, C.POINTER(ravel_samples), C.POINTER(ravel_error)]),
    "ravel_feed_verify": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_field_bytes": (C.c_int64, [C.POINTER(ravel_ragged), C.POINTER(ravel_field)]),
    "ravel_flops_adapted": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_lengths_sum), C.c_int64, C.c_int64, C.c_int, C.POINTER(ravel_flops), C.POINTER(ravel_error)]),
    "ravel_flops_count": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_lengths_sum), C.c_int64, C.c_int, C.POINTER(ravel_flops), C.POINTER(ravel_error)]),
    "ravel_flops_real": (C.c_double, [ravel_u128]),
    "ravel_gather": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_gather_counts": (C.c_int, [C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_gpu_name": (C.c_char_p, [C.c_int32, C.c_void_p]),
    "ravel_gpu_peak": (C.c_double, [C.c_char_p]),
    "ravel_lengths_add": (None, [C.POINTER(ravel_lengths_sum), C.c_void_p, C.c_int64]),
    "ravel_lengths_free": (None, [C.POINTER(ravel_lengths)]),
    "ravel_lengths_merge": (None, [C.POINTER(ravel_lengths_sum), C.POINTER(ravel_lengths_sum)]),
    "ravel_lengths_read": (C.c_int, [C.c_char_p, C.POINTER(ravel_read_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_mesh_add": (C.c_int, [C.c_void_p, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_mesh_axes_parse": (C.c_int, [C.c_char_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_mesh_comm": (C.c_void_p, [C.c_void_p, C.c_int32]),
    "ravel_mesh_coords": (ravel_mesh_coord, [C.c_void_p]),
    "ravel_mesh_create": (C.c_int, [C.c_void_p, C.POINTER(ravel_mesh_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_mesh_free": (None, [C.c_void_p]),
    "ravel_mesh_get_layout": (C.POINTER(ravel_mesh_layout), [C.c_void_p]),
    "ravel_mesh_group_of": (C.c_int32, [C.POINTER(ravel_mesh_layout), C.c_int32, C.c_int32]),
    "ravel_mesh_group_size": (C.c_int32, [C.POINTER(ravel_mesh_layout), C.c_int32]),
    "ravel_mesh_groups": (None, [C.POINTER(ravel_mesh_layout), C.c_int32, C.c_void_p]),
    "ravel_mesh_index_in": (C.c_int32, [C.POINTER(ravel_mesh_layout), C.c_int32, C.c_int32]),
    "ravel_mesh_is_first": (C.c_int32, [C.c_void_p, C.c_int32]),
    "ravel_mesh_is_last": (C.c_int32, [C.c_void_p, C.c_int32]),
    "ravel_mesh_locate": (ravel_mesh_coord, [C.POINTER(ravel_mesh_layout), C.c_int32]),
    "ravel_mesh_option_table": (C.POINTER(ravel_option), []),
    "ravel_mesh_options_default": (None, [C.POINTER(ravel_mesh_options)]),
    "ravel_mesh_plan": (C.c_int, [C.POINTER(ravel_mesh_options), C.c_int32, C.POINTER(ravel_mesh_layout), C.POINTER(ravel_error)]),
    "ravel_mesh_rank_at": (C.c_int32, [C.POINTER(ravel_mesh_layout), ravel_mesh_coord]),
    "ravel_mesh_world": (C.c_void_p, [C.c_void_p]),
    "ravel_meta_decode": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_meta), C.POINTER(ravel_error)]),
    "ravel_meta_encode": (C.c_int, [C.POINTER(ravel_meta), C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_meta_words": (C.c_int64, [C.POINTER(ravel_meta)]),
    "ravel_method_doc": (C.c_char_p, [C.c_int32]),
    "ravel_method_name": (C.c_char_p, [C.c_int32]),
    "ravel_metric_row": (C.POINTER(ravel_metric), [C.c_int32]),
    "ravel_metrics_add": (C.c_int, [C.c_void_p, C.c_int32, C.c_double, C.c_double]),
    "ravel_metrics_add_batch": (None, [C.c_void_p, C.POINTER(ravel_metrics_batch)]),
    "ravel_metrics_add_groups": (None, [C.c_void_p, C.c_int64, C.c_int64]),
    "ravel_metrics_add_rollouts": (None, [C.c_void_p, C.POINTER(ravel_metrics_rollouts)]),
    "ravel_metrics_add_tokens": (None, [C.c_void_p, C.POINTER(ravel_metrics_tokens)]),
    "ravel_metrics_begin": (None, [C.c_void_p]),
    "ravel_metrics_count": (C.c_int, [C.c_void_p, C.c_int32, C.c_int64]),
    "ravel_metrics_create": (C.c_int, [C.POINTER(ravel_metrics_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_metrics_enabled": (C.c_int, [C.c_void_p, C.c_int32]),
    "ravel_metrics_flops": (C.c_int, [C.c_void_p, C.POINTER(ravel_flops)]),
    "ravel_metrics_free": (None, [C.c_void_p]),
    "ravel_metrics_get": (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p]),
    "ravel_metrics_get_totals": (None, [C.c_void_p, C.POINTER(ravel_metrics_totals)]),
    "ravel_metrics_http_port": (C.c_int32, [C.c_void_p]),
    "ravel_metrics_integer": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p]),
    "ravel_metrics_line": (C.c_size_t, [C.c_void_p, C.c_char_p, C.c_size_t]),
    "ravel_metrics_option_table": (C.POINTER(ravel_option), []),
    "ravel_metrics_options_default": (None, [C.POINTER(ravel_metrics_options)]),
    "ravel_metrics_phase_add": (None, [C.c_void_p, C.c_int, C.c_double]),
    "ravel_metrics_phase_begin": (C.c_int, [C.c_void_p, C.c_int, C.POINTER(ravel_error)]),
    "ravel_metrics_phase_end": (C.c_int, [C.c_void_p, C.c_int, C.POINTER(ravel_error)]),
    "ravel_metrics_rank": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ravel_metrics_report": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_metrics_row": (C.POINTER(ravel_metric), [C.c_void_p, C.c_int32]),
    "ravel_metrics_rows": (C.c_int32, [C.c_void_p]),
    "ravel_metrics_run": (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, C.c_char_p, C.POINTER(ravel_error)]),
    "ravel_metrics_set_totals": (None, [C.c_void_p, C.POINTER(ravel_metrics_totals)]),
    "ravel_metrics_sink": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(ravel_error)]),
    "ravel_metrics_sink_every": (C.c_int, [C.c_void_p, C.c_char_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_metrics_sinks_failed": (C.c_int32, [C.c_void_p]),
    "ravel_metrics_update": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_metrics_value": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p]),
    "ravel_mock_described": (C.POINTER(ravel_mock_options), [C.c_void_p]),
    "ravel_mock_free": (None, [C.c_void_p]),
    "ravel_mock_length": (C.c_int64, [C.c_void_p, C.c_int64]),
    "ravel_mock_lengths": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_mock_open": (C.c_int, [C.c_char_p, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_mock_prompt": (C.c_int64, [C.c_void_p, C.c_int64]),
    "ravel_mock_tokens": (None, [C.c_void_p, C.c_int64, C.c_int32, C.c_int64, C.c_void_p]),
    "ravel_option_find": (C.POINTER(ravel_option), [C.POINTER(ravel_option), C.c_char_p]),
    "ravel_option_format": (C.c_size_t, [C.POINTER(ravel_option), C.c_void_p, C.c_char_p, C.c_size_t]),
    "ravel_option_set": (C.c_int, [C.POINTER(ravel_option), C.c_void_p, C.c_char_p, C.c_char_p, C.POINTER(ravel_error)]),
    "ravel_options_default": (None, [C.POINTER(ravel_option), C.c_void_p]),
    "ravel_order_row": (C.c_int64, [C.POINTER(ravel_order), C.c_int64, C.c_int64]),
    "ravel_order_rows": (None, [C.POINTER(ravel_order), ravel_cursor, C.c_int64, C.c_int64, C.c_void_p]),
    "ravel_order_take": (C.c_int64, [C.POINTER(ravel_order), ravel_cursor, C.c_int64, C.POINTER(ravel_cursor)]),
    "ravel_padded_bytes": (C.c_size_t, [C.POINTER(ravel_ragged), C.POINTER(ravel_padded)]),
    "ravel_padded_field_bytes": (C.c_size_t, [C.POINTER(ravel_padded), C.POINTER(ravel_field)]),
    "ravel_padded_measure": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_bin), C.POINTER(ravel_padded_options), C.POINTER(ravel_padded), C.POINTER(ravel_error)]),
    "ravel_padded_option_table": (C.POINTER(ravel_option), []),
    "ravel_padded_options_default": (None, [C.POINTER(ravel_padded_options)]),
    "ravel_padded_pack": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_bin), C.POINTER(ravel_padded_options), C.POINTER(ravel_padded), C.POINTER(ravel_error)]),
    "ravel_padded_place": (None, [C.POINTER(ravel_ragged), C.c_void_p, C.POINTER(ravel_padded)]),
    "ravel_padded_unpack": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_padded), C.POINTER(ravel_field), C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_phase_name": (C.c_char_p, [C.c_int32]),
    "ravel_pipeline_bubble": (C.c_int, [C.c_void_p, C.c_int64, C.c_int32, C.c_int32, C.POINTER(ravel_bubble), C.POINTER(ravel_error)]),
    "ravel_plan_align": (C.c_int32, [C.POINTER(ravel_plan_options)]),
    "ravel_plan_bubble": (C.c_int, [C.POINTER(ravel_plan), C.c_int32, C.c_int32, C.POINTER(ravel_bubble), C.POINTER(ravel_error)]),
    "ravel_plan_check": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.POINTER(ravel_plan), C.POINTER(ravel_error)]),
    "ravel_plan_cp_price": (C.c_int64, [C.POINTER(ravel_plan_options), C.c_int32]),
    "ravel_plan_create": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_csv": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.POINTER(ravel_plan), ravel_write, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_free": (None, [C.POINTER(ravel_plan)]),
    "ravel_plan_group": (ravel_group, [C.POINTER(ravel_plan), C.c_int64, C.c_int32]),
    "ravel_plan_html": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.POINTER(ravel_plan), C.c_char_p, ravel_write, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_json": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.POINTER(ravel_plan), ravel_write, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_option_table": (C.POINTER(ravel_option), []),
    "ravel_plan_options_default": (None, [C.POINTER(ravel_plan_options)]),
    "ravel_plan_replay": (C.c_int, [C.POINTER(ravel_plan), C.c_uint64, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_slot": (C.c_int64, [C.POINTER(ravel_plan_options), C.c_int64, C.c_int32]),
    "ravel_plan_svg": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.POINTER(ravel_plan), ravel_write, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_widths": (C.c_int32, [C.POINTER(ravel_plan_options), C.c_void_p]),
    "ravel_plan_workspace": (C.c_size_t, [C.c_int64, C.POINTER(ravel_plan_options)]),
    "ravel_planner_advance": (None, [C.c_void_p, C.c_int64, C.c_int64]),
    "ravel_planner_create": (C.c_int, [C.POINTER(ravel_plan_options), C.POINTER(ravel_planner_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_free": (None, [C.c_void_p]),
    "ravel_planner_get_report": (None, [C.c_void_p, C.POINTER(ravel_planner_report)]),
    "ravel_planner_ids": (C.c_void_p, [C.POINTER(ravel_plan)]),
    "ravel_planner_options_default": (None, [C.POINTER(ravel_planner_options)]),
    "ravel_planner_push": (C.c_int, [C.c_void_p, C.POINTER(ravel_plan_input), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_take": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_waiting": (C.c_int64, [C.c_void_p]),
    "ravel_policy_get_correction": (C.c_int, [C.c_int32, C.c_double, C.c_double, C.POINTER(ravel_correction), C.POINTER(ravel_error)]),
    "ravel_policy_loss": (C.c_int, [C.POINTER(ravel_policy_options), C.POINTER(ravel_policy_rows), C.c_void_p, C.c_void_p, C.POINTER(ravel_policy_sums), C.POINTER(ravel_error)]),
    "ravel_policy_option_table": (C.POINTER(ravel_option), []),
    "ravel_policy_options_default": (None, [C.POINTER(ravel_policy_options)]),
    "ravel_publication_list": (C.c_int, [C.c_char_p, C.POINTER(ravel_pull_options), C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(ravel_refit_tensor), C.POINTER(ravel_error)), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_publish_option_table": (C.POINTER(ravel_option), []),
    "ravel_publish_options_default": (None, [C.POINTER(ravel_publish_options)]),
    "ravel_publisher_address": (C.c_char_p, [C.c_void_p]),
    "ravel_publisher_count": (None, [C.c_void_p, C.c_void_p]),
    "ravel_publisher_create": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(ravel_refit_source), C.POINTER(ravel_publish_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_publisher_free": (None, [C.c_void_p]),
    "ravel_publisher_generators": (C.c_int64, [C.c_void_p, C.POINTER(ravel_generator_report), C.c_int64]),
    "ravel_publisher_newest": (ravel_refit_identity, [C.c_void_p]),
    "ravel_publisher_publish": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_publisher_seconds": (None, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ravel_publisher_version_bytes": (C.c_int64, [C.c_void_p]),
    "ravel_pull_option_table": (C.POINTER(ravel_option), []),
    "ravel_pull_options_default": (None, [C.POINTER(ravel_pull_options)]),
    "ravel_puller_audit": (C.c_int, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_puller_commit": (C.c_int, [C.c_void_p, C.POINTER(ravel_pull_report), C.POINTER(ravel_error)]),
    "ravel_puller_create": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(ravel_refit_sink), C.POINTER(ravel_pull_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_puller_data": (C.c_void_p, [C.c_void_p, C.c_int64]),
    "ravel_puller_drop": (C.c_int, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_puller_free": (None, [C.c_void_p]),
    "ravel_puller_identity": (ravel_refit_identity, [C.c_void_p]),
    "ravel_puller_newest": (ravel_refit_identity, [C.c_void_p]),
    "ravel_puller_note": (None, [C.c_void_p, C.c_double]),
    "ravel_puller_poll": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_puller_stage": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_puller_wait": (C.c_int, [C.c_void_p, C.c_double, C.POINTER(ravel_error)]),
    "ravel_ragged_check": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_error)]),
    "ravel_ragged_find": (C.c_int64, [C.POINTER(ravel_ragged), C.c_char_p]),
    "ravel_read_option_table": (C.POINTER(ravel_option), []),
    "ravel_read_options_default": (None, [C.POINTER(ravel_read_options)]),
    "ravel_reader_create": (C.c_int, [C.c_void_p, C.POINTER(ravel_allocator), C.POINTER(ravel_logger), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_reader_free": (None, [C.c_void_p]),
    "ravel_reader_read": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_refit_audit": (C.c_int, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_refit_connect": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_refit_count": (None, [C.POINTER(ravel_refit_report), C.c_void_p]),
    "ravel_refit_create": (C.c_int, [C.c_void_p, C.POINTER(ravel_refit_source), C.POINTER(ravel_refit_sink), C.POINTER(ravel_refit_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_refit_data": (C.c_void_p, [C.c_void_p, C.c_int64]),
    "ravel_refit_free": (None, [C.c_void_p]),
    "ravel_refit_lost": (C.c_int, [C.c_void_p]),
    "ravel_refit_option_table": (C.POINTER(ravel_option), []),
    "ravel_refit_options_default": (None, [C.POINTER(ravel_refit_options)]),
    "ravel_refit_rules_named": (C.c_int64, [C.c_char_p, C.c_int64, C.c_int64, C.c_int64, C.POINTER(ravel_refit_rule), C.c_int64]),
    "ravel_refit_run": (C.c_int, [C.c_void_p, C.POINTER(ravel_refit_source), C.POINTER(ravel_refit_sink), C.POINTER(ravel_refit_options), C.c_int64, C.POINTER(ravel_refit_report), C.POINTER(ravel_error)]),
    "ravel_refit_shape_tensors": (C.c_int64, [C.POINTER(ravel_shape), C.c_int32, C.c_int32, C.c_int32, C.POINTER(ravel_refit_tensor), C.c_char_p, C.c_int64]),
    "ravel_refit_tensor_elements": (C.c_int64, [C.POINTER(ravel_refit_tensor)]),
    "ravel_refit_trace": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(ravel_error)), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_refit_update": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_refit_report), C.POINTER(ravel_error)]),
    "ravel_refit_version": (C.c_int64, [C.c_void_p]),
    "ravel_request_test": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_request_wait": (C.c_int, [C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_request_wait_all": (C.c_int, [C.c_void_p, C.c_int64, C.POINTER(ravel_error)]),
    "ravel_routes_add": (C.c_int, [C.POINTER(ravel_routes), C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_routes_compare": (C.c_int, [C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_routes_ids": (C.c_int, [C.POINTER(ravel_routes), C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_rows_create": (C.c_int, [C.POINTER(ravel_rows_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_rows_encode": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_rows_free": (None, [C.c_void_p]),
    "ravel_rows_options_default": (None, [C.POINTER(ravel_rows_options)]),
    "ravel_rows_prompt": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_rows_render": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, C.c_int32, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_safetensor_read": (C.c_int, [C.POINTER(ravel_safetensor), C.c_int64, C.c_int64, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_safetensors_at": (C.POINTER(ravel_safetensor), [C.c_void_p, C.c_int64]),
    "ravel_safetensors_count": (C.c_int64, [C.c_void_p]),
    "ravel_safetensors_find": (C.POINTER(ravel_safetensor), [C.c_void_p, C.c_char_p]),
    "ravel_safetensors_free": (None, [C.c_void_p]),
    "ravel_safetensors_get": (C.c_int, [C.c_void_p, C.c_char_p, C.c_int32, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_safetensors_metadata": (C.c_char_p, [C.c_void_p, C.c_char_p]),
    "ravel_safetensors_metadata_count": (C.c_int64, [C.c_void_p]),
    "ravel_safetensors_metadata_key": (C.c_char_p, [C.c_void_p, C.c_int64]),
    "ravel_safetensors_metadata_value": (C.c_char_p, [C.c_void_p, C.c_int64]),
    "ravel_safetensors_open": (C.c_int, [C.c_char_p, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_safetensors_options_default": (None, [C.POINTER(ravel_safetensors_options)]),
    "ravel_safetensors_write": (C.c_int, [C.c_char_p, C.POINTER(ravel_safetensor), C.c_int64, C.c_void_p, C.c_int64, C.POINTER(ravel_safetensors_options), C.POINTER(ravel_error)]),
    "ravel_shape_check": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_shape_has_experts": (C.c_int32, [C.POINTER(ravel_shape), C.c_int64]),
    "ravel_shape_name": (C.c_char_p, [C.c_int32]),
    "ravel_shape_named": (C.c_int, [C.c_char_p, C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_shape_parameters": (C.c_int64, [C.POINTER(ravel_shape)]),
    "ravel_shape_parse": (C.c_int, [C.c_char_p, C.c_size_t, C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_shape_read": (C.c_int, [C.c_char_p, C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_share": (C.c_int64, [C.c_int64, C.c_int64, C.c_int64]),
    "ravel_share_bytes": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.c_int32, C.POINTER(ravel_error)]),
    "ravel_share_words": (C.c_int, [C.c_void_p, C.POINTER(ravel_words), C.c_int32, C.POINTER(ravel_error)]),
    "ravel_source_callbacks": (C.c_int, [C.POINTER(ravel_source_hooks), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_source_count": (C.c_int64, [C.c_void_p]),
    "ravel_source_field_count": (C.c_int32, [C.c_void_p]),
    "ravel_source_fields": (C.POINTER(ravel_field), [C.c_void_p]),
    "ravel_source_free": (None, [C.c_void_p]),
    "ravel_source_kind": (C.c_char_p, [C.c_void_p]),
    "ravel_source_open": (C.c_int, [C.POINTER(ravel_source_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_source_option_table": (C.POINTER(ravel_option), []),
    "ravel_source_options_default": (None, [C.POINTER(ravel_source_options)]),
    "ravel_source_samples": (C.c_int, [C.POINTER(ravel_samples), C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_source_where": (C.c_size_t, [C.c_void_p, C.c_int64, C.c_char_p, C.c_size_t]),
    "ravel_status_name": (C.c_char_p, [C.c_int]),
    "ravel_status_text": (C.c_char_p, [C.c_int]),
    "ravel_stream_adopt": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_stream_create": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_stream_device": (C.c_void_p, [C.c_void_p]),
    "ravel_stream_follow": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_stream_free": (None, [C.c_void_p]),
    "ravel_stream_wait": (C.c_int, [C.c_void_p, C.c_double, C.POINTER(ravel_error)]),
    "ravel_thd_bytes": (C.c_size_t, [C.POINTER(ravel_ragged), C.POINTER(ravel_thd_options), C.POINTER(ravel_thd)]),
    "ravel_thd_field_bytes": (C.c_size_t, [C.POINTER(ravel_thd), C.POINTER(ravel_field)]),
    "ravel_thd_measure": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_bin), C.POINTER(ravel_thd_options), C.POINTER(ravel_thd), C.POINTER(ravel_error)]),
    "ravel_thd_option_table": (C.POINTER(ravel_option), []),
    "ravel_thd_options_default": (None, [C.POINTER(ravel_thd_options)]),
    "ravel_thd_options_for_group": (C.c_int, [C.POINTER(ravel_plan_options), C.c_int32, C.c_int32, C.c_int32, C.POINTER(ravel_thd_options), C.POINTER(ravel_error)]),
    "ravel_thd_options_for_plan": (C.c_int, [C.POINTER(ravel_plan_options), C.c_int32, C.POINTER(ravel_thd_options), C.POINTER(ravel_error)]),
    "ravel_thd_pack": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_bin), C.POINTER(ravel_thd_options), C.POINTER(ravel_thd), C.POINTER(ravel_error)]),
    "ravel_thd_place": (None, [C.POINTER(ravel_ragged), C.POINTER(ravel_thd_options), C.c_void_p, C.POINTER(ravel_thd)]),
    "ravel_thd_unpack": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_thd_options), C.POINTER(ravel_thd), C.POINTER(ravel_field), C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_threads_run": (C.c_int, [C.c_int32, C.POINTER(ravel_comm_options), ravel_rank_fn, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tokenizer_bos": (C.c_int32, [C.c_void_p]),
    "ravel_tokenizer_bytes": (C.c_char_p, [C.c_void_p, C.c_int32, C.c_void_p]),
    "ravel_tokenizer_chat_template": (C.c_char_p, [C.c_void_p]),
    "ravel_tokenizer_decode": (C.c_size_t, [C.c_void_p, C.c_void_p, C.c_int64, C.c_int32, C.c_char_p, C.c_size_t]),
    "ravel_tokenizer_eos": (C.c_int32, [C.c_void_p]),
    "ravel_tokenizer_file": (C.c_size_t, [C.c_char_p, C.c_char_p, C.c_size_t]),
    "ravel_tokenizer_free": (None, [C.c_void_p]),
    "ravel_tokenizer_id": (C.c_int32, [C.c_void_p, C.c_char_p, C.c_size_t]),
    "ravel_tokenizer_open": (C.c_int, [C.c_char_p, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tokenizer_pad": (C.c_int32, [C.c_void_p]),
    "ravel_tokenizer_size": (C.c_int32, [C.c_void_p]),
    "ravel_tree_bytes": (C.c_size_t, [C.POINTER(ravel_tree_batch)]),
    "ravel_tree_deal": (C.c_int, [C.POINTER(ravel_tree_batch), C.c_int32, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tree_from_groups": (C.c_int, [C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_allocator), C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tree_measure": (C.c_int, [C.POINTER(ravel_tree_bin), C.c_int64, C.POINTER(ravel_tree_batch), C.POINTER(ravel_error)]),
    "ravel_tree_order": (C.c_int, [C.POINTER(ravel_tree_input), C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tree_own": (C.c_int, [C.POINTER(ravel_tree_bin), C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tree_pack": (C.c_int, [C.POINTER(ravel_tree_bin), C.POINTER(ravel_tree_batch), C.POINTER(ravel_error)]),
    "ravel_tree_pack_field": (C.c_int, [C.POINTER(ravel_tree_bin), C.POINTER(ravel_tree_batch), C.c_void_p, C.c_size_t, C.c_void_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_tree_piece_measure": (C.c_int, [C.POINTER(ravel_tree_bin), C.POINTER(ravel_tree_batch), C.c_void_p, C.c_int32, C.c_int32, C.POINTER(ravel_tree_piece), C.POINTER(ravel_error)]),
    "ravel_tree_piece_pack": (C.c_int, [C.POINTER(ravel_tree_bin), C.POINTER(ravel_tree_batch), C.c_void_p, C.c_int32, C.c_int32, C.POINTER(ravel_tree_piece), C.POINTER(ravel_error)]),
    "ravel_tree_place": (None, [C.c_void_p, C.POINTER(ravel_tree_batch)]),
    "ravel_tree_unpack": (C.c_int, [C.POINTER(ravel_tree_bin), C.POINTER(ravel_tree_batch), C.c_int32, C.c_void_p, C.c_size_t, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_version": (C.c_char_p, []),
    "ravel_weights_fill": (C.c_int, [C.POINTER(ravel_ragged), C.POINTER(ravel_bin), C.POINTER(ravel_field), C.c_void_p, C.POINTER(ravel_counts), C.POINTER(ravel_weights_options), C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_weights_option_table": (C.POINTER(ravel_option), []),
    "ravel_weights_options_default": (None, [C.POINTER(ravel_weights_options)]),
    "ravel_weights_total": (C.c_int, [C.POINTER(ravel_counts), C.POINTER(ravel_weights_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_words_free": (None, [C.POINTER(ravel_words)]),
    "ravel_words_resize": (C.c_int, [C.POINTER(ravel_words), C.c_int64, C.POINTER(ravel_error)]),
}

STRUCTS = [ravel_error, ravel_allocator, ravel_logger, ravel_place, ravel_device_info, ravel_option, ravel_field, ravel_ragged,
    ravel_bin, ravel_cp, ravel_thd_options, ravel_thd, ravel_padded_options, ravel_padded, ravel_encoding, ravel_rows_options,
    ravel_row_part, ravel_row, ravel_comm_options, ravel_comm_hooks, ravel_shape, ravel_cost, ravel_plan_options, ravel_passes,
    ravel_cost_sample, ravel_cost_fit, ravel_plan_input, ravel_plan_stats, ravel_hybrid, ravel_plan, ravel_group, ravel_bubble,
    ravel_planner_options, ravel_planner_report, ravel_exchange_sizes, ravel_words, ravel_mesh_options, ravel_mesh_coord,
    ravel_mesh_layout, ravel_counts, ravel_sum_hook, ravel_weights_options, ravel_update_counts, ravel_meta, ravel_u128,
    ravel_lengths_sum, ravel_flops, ravel_metric, ravel_metrics_reducer, ravel_metrics_options, ravel_metrics_batch,
    ravel_metrics_rollouts, ravel_metrics_tokens, ravel_metrics_totals, ravel_order, ravel_cursor, ravel_samples,
    ravel_source_options, ravel_source_hooks, ravel_reader_stats, ravel_feed_options, ravel_feed_update, ravel_micro_batch,
    ravel_feed_iter, ravel_feed_stats, ravel_read_options, ravel_lengths, ravel_mock_options, ravel_correction,
    ravel_policy_options, ravel_policy_rows, ravel_policy_sums, ravel_refit_identity, ravel_refit_tensor, ravel_refit_rule,
    ravel_refit_source, ravel_refit_piece, ravel_refit_sink, ravel_refit_options, ravel_refit_report, ravel_publish_options,
    ravel_generator_report, ravel_pull_options, ravel_pull_report, ravel_routes, ravel_safetensor, ravel_safetensors_options,
    ravel_tree_input, ravel_tree_bin, ravel_tree_batch, ravel_tree_piece]

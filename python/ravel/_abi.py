"""Made from include/ravel/*.h by python/tools/abi.py. Do not edit: run it again."""

import ctypes as C

# ravel_effort
RAVEL_EFFORT_FAST = 0
RAVEL_EFFORT_DEFAULT = 1
RAVEL_EFFORT_MAX = 2

# ravel_group_rule
RAVEL_GROUPS_FREE = 0
RAVEL_GROUPS_UPDATE = 1
RAVEL_GROUPS_RANK = 2

# ravel_json_kind
RAVEL_JSON_NULL = 0
RAVEL_JSON_FALSE = 1
RAVEL_JSON_TRUE = 2
RAVEL_JSON_INTEGER = 3
RAVEL_JSON_REAL = 4
RAVEL_JSON_STRING = 5
RAVEL_JSON_ARRAY = 6
RAVEL_JSON_OBJECT = 7

# ravel_layout
RAVEL_LAYOUT_PACKED = 0
RAVEL_LAYOUT_PADDED = 1
RAVEL_LAYOUT_PADDED_2D = 2

# ravel_log_level
RAVEL_LOG_DEBUG = 0
RAVEL_LOG_INFO = 1
RAVEL_LOG_WARN = 2

# ravel_method
RAVEL_METHOD_RAVEL = 0
RAVEL_METHOD_NEXT_FIT = 1
RAVEL_METHOD_NEXT_FIT_DECREASING = 2
RAVEL_METHOD_FFD = 3
RAVEL_METHOD_BFD = 4
RAVEL_METHOD_MFFD = 5
RAVEL_METHOD_KK = 6
RAVEL_METHOD_LPT = 7
RAVEL_METHOD_COUNT = 8
RAVEL_METHOD_AS_IS = 9

# ravel_option_type
RAVEL_OPTION_I32 = 0
RAVEL_OPTION_I64 = 1
RAVEL_OPTION_U64 = 2
RAVEL_OPTION_F64 = 3
RAVEL_OPTION_BOOL = 4
RAVEL_OPTION_ENUM = 5
RAVEL_OPTION_STRING = 6

# ravel_oversize
RAVEL_OVERSIZE_ERROR = 0
RAVEL_OVERSIZE_SKIP = 1

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
RAVEL_E_PEER_LOST = 20
RAVEL_E_TIMEOUT = 21
RAVEL_E_DEAD = 22
RAVEL_E_INTERNAL = 30

# ravel_sync
RAVEL_SYNC_MICRO_STEP = 0
RAVEL_SYNC_UPDATE = 1
RAVEL_SYNC_PIPELINE = 2


class ravel_error(C.Structure):
    pass


class ravel_allocator(C.Structure):
    pass


class ravel_logger(C.Structure):
    pass


class ravel_json_node_as(C.Union):
    pass


class ravel_json_node(C.Structure):
    pass


class ravel_option(C.Structure):
    pass


class ravel_shape(C.Structure):
    pass


class ravel_cost(C.Structure):
    pass


class ravel_plan_options(C.Structure):
    pass


class ravel_plan_input(C.Structure):
    pass


class ravel_plan_stats(C.Structure):
    pass


class ravel_plan(C.Structure):
    pass


ravel_error._fields_ = [
    ("status", C.c_int32),
    ("message", C.c_char * 1020),
]
ravel_allocator._fields_ = [
    ("resize", C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_size_t)),
    ("user", C.c_void_p),
]
ravel_logger._fields_ = [
    ("write", C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_char_p)),
    ("user", C.c_void_p),
]
ravel_json_node_as._fields_ = [
    ("integer", C.c_int64),
    ("real", C.c_double),
    ("string", C.c_char_p),
]
ravel_json_node._fields_ = [
    ("kind", C.c_int16),
    ("last", C.c_int16),
    ("count", C.c_int32),
    ("skip", C.c_uint32),
    ("bytes", C.c_uint32),
    ("key", C.c_char_p),
    ("as", ravel_json_node_as),
]
ravel_option._fields_ = [
    ("name", C.c_char_p),
    ("type", C.c_int32),
    ("offset", C.c_int32),
    ("preset", C.c_char_p),
    ("min", C.c_double),
    ("max", C.c_double),
    ("choices", C.c_char_p),
    ("doc", C.c_char_p),
]
ravel_shape._fields_ = [
    ("hidden", C.c_int64),
    ("layers", C.c_int64),
    ("heads", C.c_int64),
    ("kv_heads", C.c_int64),
    ("head_dim", C.c_int64),
    ("ffn", C.c_int64),
    ("vocab", C.c_int64),
    ("experts", C.c_int64),
    ("experts_active", C.c_int64),
    ("expert_ffn", C.c_int64),
    ("shared_ffn", C.c_int64),
    ("dense_layers", C.c_int64),
    ("max_positions", C.c_int64),
    ("tied", C.c_int32),
    ("qk_norm", C.c_int32),
    ("attention_bias", C.c_int32),
    ("gated", C.c_int32),
    ("rope_theta", C.c_double),
    ("norm_eps", C.c_double),
    ("q_rank", C.c_int64),
    ("kv_rank", C.c_int64),
    ("rope_dim", C.c_int64),
    ("v_dim", C.c_int64),
]
ravel_cost._fields_ = [
    ("linear", C.c_int64),
    ("quadratic", C.c_int64),
    ("overhead", C.c_int64),
]
ravel_plan_options._fields_ = [
    ("size", C.c_size_t),
    ("budget", C.c_int64),
    ("cp", C.c_int32),
    ("align", C.c_int32),
    ("max_samples", C.c_int64),
    ("dp", C.c_int32),
    ("multiple", C.c_int32),
    ("min_micro_steps", C.c_int64),
    ("updates", C.c_int32),
    ("sync", C.c_int32),
    ("samples_per_update", C.c_int64),
    ("layout", C.c_int32),
    ("method", C.c_int32),
    ("effort", C.c_int32),
    ("group_rule", C.c_int32),
    ("count", C.c_int64),
    ("oversize", C.c_int32),
    ("shuffle", C.c_int32),
    ("seed", C.c_uint64),
    ("cost", ravel_cost),
    ("allocator", C.POINTER(ravel_allocator)),
]
ravel_plan_input._fields_ = [
    ("size", C.c_size_t),
    ("count", C.c_int64),
    ("lengths", C.c_void_p),
    ("prompts", C.c_void_p),
    ("responses", C.c_void_p),
    ("costs", C.c_void_p),
    ("groups", C.c_void_p),
    ("updates", C.c_void_p),
    ("homes", C.c_void_p),
]
ravel_plan_stats._fields_ = [
    ("samples", C.c_int64),
    ("skipped", C.c_int64),
    ("bins", C.c_int64),
    ("bins_lower_bound", C.c_int64),
    ("fillers", C.c_int64),
    ("micro_steps", C.c_int64),
    ("micro_steps_lower_bound", C.c_int64),
    ("capacity_tokens", C.c_int64),
    ("padded_tokens", C.c_int64),
    ("actual_tokens", C.c_int64),
    ("longest", C.c_int64),
    ("over_budget", C.c_int64),
    ("cost", C.c_int64),
    ("cost_shift", C.c_int64),
    ("time", C.c_int64),
    ("time_lower_bound", C.c_int64),
    ("time_micro_step", C.c_int64),
    ("time_update", C.c_int64),
    ("tokens_moved", C.c_int64),
    ("fill", C.c_double),
    ("padding", C.c_double),
    ("idle_micro_step", C.c_double),
    ("idle_update", C.c_double),
    ("slowdown", C.c_double),
    ("imbalance", C.c_double),
]
ravel_plan._fields_ = [
    ("count", C.c_int64),
    ("updates", C.c_int64),
    ("micro_steps", C.c_int64),
    ("bins", C.c_int64),
    ("dp", C.c_int32),
    ("reserved", C.c_int32),
    ("update_offsets", C.c_void_p),
    ("bin_offsets", C.c_void_p),
    ("samples", C.c_void_p),
    ("bin_tokens", C.c_void_p),
    ("bin_slots", C.c_void_p),
    ("bin_costs", C.c_void_p),
    ("skipped", C.c_void_p),
    ("digest", C.c_uint64),
    ("stats", ravel_plan_stats),
]

FUNCTIONS = {
    "ravel_choice_index": (C.c_int32, [C.c_char_p, C.c_char_p]),
    "ravel_choice_word": (C.c_int, [C.c_char_p, C.c_int32, C.c_char_p, C.c_size_t]),
    "ravel_cost_from_shape": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_cost), C.POINTER(ravel_error)]),
    "ravel_cost_parse": (C.c_int, [C.c_char_p, C.POINTER(ravel_cost), C.POINTER(ravel_error)]),
    "ravel_error_clear": (None, [C.POINTER(ravel_error)]),
    "ravel_error_prefix": (None, [C.POINTER(ravel_error), C.c_char_p]),
    "ravel_error_set": (C.c_int, [C.POINTER(ravel_error), C.c_int, C.c_char_p]),
    "ravel_json_boolean": (C.c_int, [C.POINTER(ravel_json_node), C.c_void_p]),
    "ravel_json_first": (C.POINTER(ravel_json_node), [C.c_void_p, C.POINTER(ravel_json_node)]),
    "ravel_json_free": (None, [C.c_void_p]),
    "ravel_json_get": (C.POINTER(ravel_json_node), [C.c_void_p, C.POINTER(ravel_json_node), C.c_char_p]),
    "ravel_json_integer": (C.c_int, [C.POINTER(ravel_json_node), C.c_void_p]),
    "ravel_json_is": (C.c_int, [C.POINTER(ravel_json_node), C.c_char_p]),
    "ravel_json_next": (C.POINTER(ravel_json_node), [C.c_void_p, C.POINTER(ravel_json_node)]),
    "ravel_json_parse": (C.c_int, [C.c_char_p, C.c_size_t, C.POINTER(ravel_allocator), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_json_path": (C.POINTER(ravel_json_node), [C.c_void_p, C.POINTER(ravel_json_node), C.c_char_p]),
    "ravel_json_quote": (C.c_size_t, [C.c_char_p, C.c_size_t, C.c_char_p, C.c_size_t]),
    "ravel_json_real": (C.c_int, [C.POINTER(ravel_json_node), C.c_void_p]),
    "ravel_json_root": (C.POINTER(ravel_json_node), [C.c_void_p]),
    "ravel_method_doc": (C.c_char_p, [C.c_int32]),
    "ravel_method_name": (C.c_char_p, [C.c_int32]),
    "ravel_option_find": (C.POINTER(ravel_option), [C.POINTER(ravel_option), C.c_char_p]),
    "ravel_option_format": (C.c_size_t, [C.POINTER(ravel_option), C.c_void_p, C.c_char_p, C.c_size_t]),
    "ravel_option_set": (C.c_int, [C.POINTER(ravel_option), C.c_void_p, C.c_char_p, C.c_char_p, C.POINTER(ravel_error)]),
    "ravel_options_check": (C.c_int, [C.POINTER(ravel_option), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_options_default": (None, [C.POINTER(ravel_option), C.c_void_p]),
    "ravel_options_from_json": (C.c_int, [C.POINTER(ravel_option), C.c_void_p, C.c_void_p, C.POINTER(ravel_json_node), C.POINTER(ravel_error)]),
    "ravel_parse_size": (C.c_int, [C.c_char_p, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_check": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.POINTER(ravel_plan), C.POINTER(ravel_error)]),
    "ravel_plan_create": (C.c_int, [C.POINTER(ravel_plan_input), C.POINTER(ravel_plan_options), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_plan_free": (None, [C.POINTER(ravel_plan)]),
    "ravel_plan_option_table": (C.POINTER(ravel_option), []),
    "ravel_plan_options_default": (None, [C.POINTER(ravel_plan_options)]),
    "ravel_plan_replay": (C.c_int, [C.POINTER(ravel_plan), C.c_uint64, C.c_int64, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_create": (C.c_int, [C.POINTER(ravel_plan_options), C.c_double, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_free": (None, [C.c_void_p]),
    "ravel_planner_ids": (C.c_void_p, [C.POINTER(ravel_plan)]),
    "ravel_planner_push": (C.c_int, [C.c_void_p, C.POINTER(ravel_plan_input), C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_take": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.POINTER(ravel_error)]),
    "ravel_planner_waiting": (C.c_int64, [C.c_void_p]),
    "ravel_shape_attention_width": (C.c_int64, [C.POINTER(ravel_shape)]),
    "ravel_shape_check": (C.c_int, [C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_shape_matmul_weights": (C.c_int64, [C.POINTER(ravel_shape)]),
    "ravel_shape_name": (C.c_char_p, [C.c_int32]),
    "ravel_shape_named": (C.c_int, [C.c_char_p, C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_shape_parameters": (C.c_int64, [C.POINTER(ravel_shape)]),
    "ravel_shape_parse": (C.c_int, [C.c_char_p, C.c_size_t, C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_shape_read": (C.c_int, [C.c_char_p, C.POINTER(ravel_shape), C.POINTER(ravel_error)]),
    "ravel_status_name": (C.c_char_p, [C.c_int]),
    "ravel_status_text": (C.c_char_p, [C.c_int]),
    "ravel_suggest": (C.c_char_p, [C.c_char_p, C.c_void_p, C.c_size_t]),
    "ravel_version": (C.c_char_p, []),
}

STRUCTS = [
    ravel_error,
    ravel_allocator,
    ravel_logger,
    ravel_json_node_as,
    ravel_json_node,
    ravel_option,
    ravel_shape,
    ravel_cost,
    ravel_plan_options,
    ravel_plan_input,
    ravel_plan_stats,
    ravel_plan,
]

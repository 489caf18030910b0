/* The input of a plan: lengths from a file or a mock, and the optional columns beside them. */
#include "cli/plan/plan.h"

#include "train/run/config/resolve.h"
#include "cli/text.h"

#include "io/mock.h"
#include "io/columns.h"

#include <ravel/mock.h>
#include <ravel/shape.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void read_progress(void *user, int64_t done, int64_t total) {
    cli_progress(user, (double)done, (double)total);
}

/* ---- lengths -------------------------------------------------------------------------------------------- */

static ravel_status read_lengths(const plan_flags *flags, const ravel_read_options *read, plan_data *data,
                                 ravel_error *err) {
    ravel_read_options options = *read;
    char what[128];
    (void)snprintf(what, sizeof what, "reading %.100s", flags->lengths);
    options.progress = read_progress;
    options.user = what;
    const text_options text = {.tokenizer = flags->tokenizer,
                               .field = flags->text_field,
                               .rows = !flags->text_field,
                               .flags = RAVEL_ENCODE_TEMPLATE,
                               .limit = read->limit};
    ravel_status status = flags->tokenizer ? text_lengths(flags->lengths, &text, &data->lengths, &data->text_lines, err)
                                           : ravel_lengths_read(flags->lengths, &options, &data->lengths, err);
    cli_progress_end();
    if (status) return status;
    const char *name = strcmp(flags->lengths, "-") == 0 ? "standard input" : flags->lengths,
               *slash = strrchr(name, '/');
    data->file = name;
    (void)snprintf(data->source, sizeof data->source, "%s: %s", name, data->lengths->columns);
    (void)snprintf(data->title, sizeof data->title, "%s", slash ? slash + 1 : name);
    return RAVEL_OK;
}

static void describe_mock(const ravel_mock_options *o, plan_data *data) {
    char type[32] = "";
    (void)ravel__choice_word(RAVEL_MOCK_TYPE_CHOICES, o->type, type, sizeof type);
    if (o->mode == RAVEL_MOCK_FILE)
        (void)snprintf(data->source, sizeof data->source, "mock of %s", o->path);
    else if (o->type == RAVEL_MOCK_CONSTANT)
        (void)snprintf(data->source, sizeof data->source, "constant mock of %.0f", o->mean_seq_len);
    else
        (void)snprintf(data->source, sizeof data->source, "%s mock from %lld to %lld, seed %llu", type,
                       (long long)o->min_seq_len, (long long)o->max_seq_len, (unsigned long long)o->seed);
    (void)snprintf(data->title, sizeof data->title, "%.250s", data->source);
}

static ravel_status make_mock(const plan_flags *flags, plan_data *data, ravel_error *err) {
    ravel_mock *mock = NULL;
    ravel_status status = ravel_mock_open(flags->mock, NULL, &mock, err);
    if (status) return status;
    ravel__mock_recount(mock, flags->mock_count);
    if (flags->mock_seed >= 0) ravel__mock_reseed(mock, (uint64_t)flags->mock_seed);
    describe_mock(ravel_mock_described(mock), data);
    status = ravel_mock_lengths(mock, &data->lengths, err);
    ravel_mock_free(mock);
    return status;
}

/* ---- columns beside the lengths ------------------------------------------------------------------------- */

/* A row per sample; no more where all rows were read. */
static ravel_status read_column(const char *path, const char *name, int64_t min, int64_t max, const plan_data *data,
                                ravel__column **column, ravel_error *err) {
    ravel__column *fresh = NULL;
    ravel_read_options options;
    ravel_read_options_default(&options);
    options.limit = data->limit;
    ravel_status status = ravel__column_read(path, name, min, max, &options, &fresh, err);
    if (status) return status;
    if (fresh->count != data->lengths->count) {
        status = ravel_error_set(err, RAVEL_E_DATA, "%s: %lld rows, but there are %lld samples", path,
                                 (long long)fresh->count, (long long)data->lengths->count);
        ravel__column_free(fresh);
        return status;
    }
    *column = fresh;
    return RAVEL_OK;
}

/* As 32-bit numbers, which the planner takes; *top is the largest. */
static ravel_status read_narrow(const char *path, const char *name, int64_t min, int64_t max, const plan_data *data,
                                int32_t **out, int32_t *top, ravel_error *err) {
    ravel__column *column = NULL;
    ravel_status status = read_column(path, name, min, max, data, &column, err);
    if (!column) return status;
    int64_t count = data->lengths->count;
    int32_t *narrow = malloc((size_t)count * sizeof *narrow);
    if (!narrow) {
        ravel__column_free(column);
        return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for %lld rows", (long long)count);
    }
    *top = -1;
    RAVEL_ASSERT(count >= 0 && column->count == count);
    for (int64_t i = 0; i < count; i++) {
        narrow[i] = (int32_t)column->values[i];
        if (narrow[i] > *top) *top = narrow[i];
    }
    ravel__column_free(column);
    *out = narrow;
    return RAVEL_OK;
}

static ravel_status read_columns(const plan_flags *flags, ravel_plan_options *options, plan_data *data,
                                 ravel_error *err) {
    int32_t top = 0, ranks = options->cp_pool ? options->cp_pool : options->dp;
    ravel_status status = RAVEL_OK;
    if (flags->home) /* with a sweep over dp, each plan checks again */
        status = read_narrow(flags->home, "home", -1, flags->sweep ? INT32_MAX : (int64_t)ranks - 1, data, &data->homes,
                             &top, err);
    if (!status && flags->update_ids) {
        int64_t most = options->updates > 0 ? options->updates - 1 : (1 << 30) - 1;
        status = read_narrow(flags->update_ids, "update", 0, most, data, &data->updates, &top, err);
        if (!status && options->updates < 0) options->updates = top + 1;
    }
    if (!status && flags->groups)
        status = read_column(flags->groups, "group", INT64_MIN, INT64_MAX, data, &data->groups, err);
    if (!status && flags->costs) status = read_column(flags->costs, "cost", 0, INT64_MAX, data, &data->costs, err);
    if (options->updates < 0) options->updates = 1;
    if (options->group_rule < 0) options->group_rule = flags->groups ? RAVEL_GROUPS_UPDATE : RAVEL_GROUPS_FREE;
    RAVEL_ASSERT(options->updates >= 0 && options->group_rule >= 0);
    return status;
}

static void fill_input(plan_data *data) {
    ravel_plan_input *in = &data->input;
    RAVEL_ASSERT(data->lengths && data->lengths->count >= 0);
    in->size = sizeof *in;
    in->count = data->lengths->count;
    in->lengths = data->lengths->lengths;
    in->prompts = data->lengths->prompts;
    in->responses = data->lengths->responses;
    in->costs = data->costs ? data->costs->values : NULL;
    in->groups = data->groups ? data->groups->values : NULL;
    in->updates = data->updates;
    in->homes = data->homes;
    in->shared = data->tree_shared;
    in->order = data->tree_order;
    if (data->tree_groups && !in->groups) in->groups = data->tree_groups;
    data->total = data->lengths->total;
    data->longest = data->lengths->longest;
}

/* Options that the chosen input would ignore. */
static ravel_status check_input(const plan_flags *flags, const ravel_read_options *read, ravel_error *err) {
    int inputs = (flags->lengths != NULL) + (flags->mock != NULL) + (flags->tree != NULL);
    if (inputs != 1)
        return CLI_REFUSE(
            err, inputs ? "give one of --lengths, --tree and --mock, not both"
                        : "there is nothing to plan: give --lengths FILE, --tree FILE or --mock JSON; see --help");
    if (flags->tree && (read->format || read->field))
        return CLI_REFUSE(err, "--format and --field are for --lengths, not for --tree");
    if (flags->mock && (read->format || read->field || read->limit))
        return CLI_REFUSE(err, "--format, --field and --limit are for --lengths, not for --mock");
    if (!flags->mock && (flags->mock_count || flags->mock_seed >= 0))
        return CLI_REFUSE(err, "--mock-count and --mock-seed are for --mock");
    if (flags->text_field && !flags->tokenizer) return CLI_REFUSE(err, "--text-field needs --tokenizer FOLDER");
    if (flags->tokenizer && (read->format || read->field))
        return CLI_REFUSE(err,
                          "--format and --field are for files of lengths; with --tokenizer the file is JSON lines, and "
                          "--text-field names the text");
    return RAVEL_OK;
}

ravel_status plan_data_read(const plan_flags *flags, const ravel_read_options *read, ravel_plan_options *options,
                            plan_data *data, ravel_error *err) {
    memset(data, 0, sizeof *data);
    data->limit = read->limit;
    ravel_status status = check_input(flags, read, err);
    if (status) return status;
    status = flags->mock   ? make_mock(flags, data, err)
             : flags->tree ? plan_tree_read(flags, read, data, err)
                           : read_lengths(flags, read, data, err);
    if (!status) status = read_columns(flags, options, data, err);
    if (status) {
        plan_data_free(data);
        return status;
    }
    fill_input(data);
    if (flags->cost) { /* the page's title names the cost model */
        size_t used = strlen(data->title);
        (void)snprintf(data->title + used, sizeof data->title - used, ", cost %.100s", flags->cost);
    }
    return RAVEL_OK;
}

void plan_data_free(plan_data *data) {
    ravel_lengths_free(data->lengths);
    ravel__column_free(data->costs);
    ravel__column_free(data->groups);
    free(data->homes);
    free(data->updates);
    free(data->text_lines);
    free(data->tree_order);
    free(data->tree_shared);
    free(data->tree_groups);
    memset(data, 0, sizeof *data);
}

/* ---- files ---------------------------------------------------------------------------------------------- */

ravel_status plan_claim_files(const plan_flags *f, ravel_error *err) {
    const struct {
        const char *option, *path;
    } inputs[] =
        {{"lengths", f->lengths}, {"tree", f->tree},     {"mock", f->mock && f->mock[0] == '@' ? f->mock + 1 : NULL},
         {"cost", f->cost},       {"fit", f->fit},       {"costs", f->costs},
         {"home", f->home},       {"groups", f->groups}, {"update-ids", f->update_ids}},
      outputs[] = {{"json", f->json}, {"csv", f->csv}, {"html", f->html}, {"svg", f->svg}};
    ravel_status status = RAVEL_OK;
    int standard = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs && !status; i++) {
        standard += inputs[i].path && strcmp(inputs[i].path, "-") == 0;
        status = cli_claim_input(inputs[i].option, inputs[i].path, err);
    }
    if (!status && standard > 1) status = CLI_REFUSE(err, "only one input can be standard input");
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs && !status; i++)
        status = cli_claim_output(outputs[i].option, outputs[i].path, err);
    return status;
}

/* ---- cost ----------------------------------------------------------------------------------------------- */

ravel_status plan_cost(const char *text, ravel_plan_options *options, char prices[PLAN_PRICES], ravel_error *err) {
    train_model_path path; /* of a run, its newest checkpoint */
    ravel_status status = train_model_resolve(text, &path, err);
    if (!status) status = ravel_cost_read(path.model, &options->cost, prices, PLAN_PRICES, err);
    if (!status && prices[0] && !options->cp_price) options->cp_price = prices;
    return status;
}

#include "train/rl/prompts.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/files.h"

#include "base/json.h"
#include <ravel/order.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text per row, each with a NUL behind it. */
typedef struct texts {
    char *data;
    int64_t used, room;
    int64_t *at; /* [rows] offsets; -1: the row has none */
    int64_t at_room;
} texts;

struct train_prompts {
    train_prompts_options options;
    const train_task *task; /* or: */
    train_rollouts rows;    /* prompts of the file */
    int64_t train_rows;     /* of them; those behind are for evaluation */
    int64_t longest;
    train_problems problems; /* rows that cannot be used */
    int64_t lines;           /* rows of the file, good and bad */
    texts answers, lines_kept;
};

/* ---- files ---------------------------------------------------------------------------------------------- */

/* The text of an answer: a string as it is, numbers and booleans as JSON writes them; NULL: there is none. */
static const char *answer_text(const ravel__json_node *node, char *number, size_t room, size_t *bytes) {
    const char *text = number;
    switch (node ? (ravel__json_kind)node->kind : RAVEL__JSON_NULL) {
    case RAVEL__JSON_STRING: *bytes = node->bytes; return node->as.string;
    case RAVEL__JSON_TRUE: text = "true"; break;
    case RAVEL__JSON_FALSE: text = "false"; break;
    case RAVEL__JSON_INTEGER: (void)snprintf(number, room, "%lld", (long long)node->as.integer); break;
    case RAVEL__JSON_REAL: (void)snprintf(number, room, "%.17g", node->as.real); break;
    default: text = NULL;
    }
    *bytes = text ? strlen(text) : 0;
    return text;
}

/* The text of row `row`, the last one so far; NULL: it has none. */
static ravel_status keep_text(texts *t, int64_t row, const char *text, size_t bytes, ravel_error *err) {
    int64_t need = t->used + (text ? (int64_t)bytes + 1 : 0);
    int64_t *at = train__grown(NULL, t->at, &t->at_room, row, row + 1, sizeof *at);
    if (!at) return ravel__no_memory(err, (size_t)(row + 1) * sizeof *at, "texts of rows");
    t->at = at;
    t->at[row] = text ? t->used : -1;
    if (!text) return RAVEL_OK;
    char *data = train__grown(NULL, t->data, &t->room, t->used, need, 1);
    if (!data) return ravel__no_memory(err, (size_t)need, "texts of rows");
    t->data = data;
    memcpy(t->data + t->used, text, bytes);
    t->data[need - 1] = '\0';
    t->used = need;
    return RAVEL_OK;
}

static void free_texts(texts *t) {
    ravel__release(NULL, t->data, (size_t)t->room);
    ravel__release(NULL, t->at, (size_t)t->at_room * sizeof *t->at);
}

static const char *text_of(const texts *t, int64_t row) {
    return t->at && t->at[row] >= 0 ? t->data + t->at[row] : NULL;
}

/* A line without the white space around it. */
static const char *trim(const char *line, size_t *bytes) {
    const char *end = line + *bytes;
    line += strspn(line, " \t\r\n");
    while (end > line && strchr(" \t\r\n", end[-1])) end--;
    *bytes = (size_t)(end - line);
    return line;
}

/* The tokens of a row: its text, or its ids, which are put into room[enough]. E_DATA if it has neither. */
static ravel_status row_tokens(const train_prompts *p, const ravel__json *doc, const char *line, size_t bytes,
                               int32_t *room, const int32_t **tokens, int64_t *count, ravel_error *err) {
    const ravel__json_node *root = ravel__json_root(doc), *ids = ravel__json_get(doc, root, "input_ids");
    const ravel__json_node *text = ravel__json_get(doc, root, "prompt");
    int64_t n = 0, id;
    if (text && text->kind != RAVEL__JSON_STRING) text = NULL;
    if (!ids && p->options.raw && text)
        return train_text_encode(p->options.text, text->as.string, text->bytes, tokens, count, err);
    if (!ids)
        return train_text_prompt(p->options.text, line, bytes, text ? text->as.string : NULL, text ? text->bytes : 0,
                                 tokens, count, err);
    for (const ravel__json_node *x = ravel__json_first(doc, ids); x; x = ravel__json_next(doc, x), n++) {
        if (!ravel__json_integer(x, &id) || id < 0 || id >= p->options.vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "input_ids must be tokens below %lld",
                                   (long long)p->options.vocab);
        room[n] = (int32_t)id;
    }
    *tokens = room;
    *count = n;
    return n > 0 ? RAVEL_OK : ravel_error_set(err, RAVEL_E_DATA, "input_ids is empty");
}

/* Checks a row; E_DATA describes the problem. */
static ravel_status check_row(const train_prompts *p, int64_t tokens, const char *answer, ravel_error *err) {
    if (tokens == 0) return ravel_error_set(err, RAVEL_E_DATA, "the prompt is empty");
    if (p->options.longest > 0 && tokens > p->options.longest)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the prompt has %lld tokens; %lld fit the budget beside an answer of max-tokens",
                               (long long)tokens, (long long)p->options.longest);
    if (!answer && p->options.need_answers)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "there is no \"answer\" that is a text, a number or a boolean, and no --reward-command "
                               "that could score it");
    return RAVEL_OK;
}

static ravel_status take_line(train_prompts *p, ravel__json **doc, const char *line, size_t bytes, ravel_error *err) {
    char number[64];
    size_t answer_bytes;
    ravel_status status = ravel__json_parse(line, bytes, NULL, doc, err);
    if (status) return status;
    const ravel__json_node *root = ravel__json_root(*doc);
    const char *answer = answer_text(ravel__json_get(*doc, root, "answer"), number, sizeof number, &answer_bytes);
    const int32_t *tokens;
    int64_t count = 0;
    int32_t *room = malloc((bytes + 2) * sizeof *room);
    if (!room) return ravel__no_memory(err, (bytes + 2) * sizeof *room, "a prompt");
    status = row_tokens(p, *doc, line, bytes, room, &tokens, &count, err);
    if (!status) status = check_row(p, count, answer, err);
    train_rollout row = {.length = count, .prompt = count};
    if (!status) status = train_rollouts_add(&p->rows, &row, tokens, NULL, NULL, err);
    if (!status) status = keep_text(&p->answers, p->rows.count - 1, answer, answer_bytes, err);
    if (!status && p->options.keep_lines) {
        line = trim(line, &bytes);
        status = keep_text(&p->lines_kept, p->rows.count - 1, line, bytes, err);
    }
    if (!status) p->longest = train__max(p->longest, count);
    RAVEL_ASSERT(status || count > 0);
    free(room);
    return status;
}

static ravel_status read_lines(train_prompts *p, FILE *f, const char *path, ravel_error *err) {
    char *line = NULL;
    size_t room = 0;
    int64_t number = 0;
    ravel__json *doc = NULL;
    ravel_status status = RAVEL_OK;
    for (ssize_t bytes; !status && (bytes = getline(&line, &room, f)) >= 0;) {
        ravel_error why = RAVEL_ERROR_INIT;
        number++;
        if (strspn(line, " \t\r\n") == (size_t)bytes) continue;
        p->lines++;
        status = take_line(p, &doc, line, (size_t)bytes, &why);
        if (!status) continue;
        ravel_error_prefix(&why, "%s:%lld", path, (long long)number);
        if (status != RAVEL_E_DATA) {
            *err = why;
        } else {
            train_problems_add(&p->problems, &why);
            status = RAVEL_OK;
        }
    }
    ravel__json_free(doc);
    free(line);
    return status;
}

static ravel_status read_file(train_prompts *p, const char *path, ravel_error *err) {
    const int is_input = strcmp(path, "-") == 0;
    const int64_t before = p->rows.count;
    FILE *f = is_input ? stdin : fopen(path, "r");
    if (!f) return train_file_error(err, "read", path);
    if (is_input) path = "standard input";
    ravel_status status = read_lines(p, f, path, err);
    if (!status && ferror(f)) status = train_file_error(err, "read", path);
    if (!is_input) (void)fclose(f);
    if (!status && (p->options.bad_rows == RAVEL_BAD_ROWS_ERROR || p->rows.count == before))
        status = train_problems_error(&p->problems, path, p->lines, err);
    if (!status && p->rows.count == before) status = ravel_error_set(err, RAVEL_E_DATA, "%s holds no prompt", path);
    return status;
}

/* ---- public functions ------------------------------------------------------------------------------------ */

ravel_status train_eval_rows(int64_t rows, double share, int64_t *apart, ravel_error *err) {
    *apart = (int64_t)((double)rows * share);
    RAVEL_ASSERT(*apart >= 0 && *apart <= rows);
    if (share <= 0 || (*apart > 0 && *apart < rows)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "eval-share %g of %lld rows leaves nothing to %s", share,
                           (long long)rows, *apart ? "train on" : "evaluate");
}

static ravel_status open_either(train_prompts *p, ravel_error *err) {
    p->longest = p->options.data || p->options.numbers ? 0 : TRAIN_TASK_PROMPT;
    if (p->options.numbers) return RAVEL_OK;
    if (!p->options.data) return train_task_find(p->options.task, &p->task, err);
    int64_t apart = 0;
    ravel_status status = read_file(p, p->options.data, err);
    if (!status) status = train_eval_rows(p->rows.count, p->options.eval_share, &apart, err);
    p->train_rows = p->rows.count - apart;
    if (status || !p->options.eval_data) return status;
    p->lines = 0;
    status = read_file(p, p->options.eval_data, err);
    return status;
}

ravel_status train_prompts_open(const train_prompts_options *options, train_prompts **prompts, ravel_error *err) {
    train_prompts *p = ravel__calloc(NULL, 1, sizeof *p);
    if (!p) return ravel__no_memory(err, sizeof *p, "prompts");
    p->options = *options;
    ravel_status status = open_either(p, err);
    if (status) {
        train_prompts_free(p);
        return status;
    }
    *prompts = p;
    return RAVEL_OK;
}

void train_prompts_free(train_prompts *p) {
    if (!p) return;
    train_rollouts_free(&p->rows);
    free_texts(&p->answers);
    free_texts(&p->lines_kept);
    ravel__release(NULL, p, sizeof *p);
}

const train_problems *train_prompts_left_out(const train_prompts *p) {
    return &p->problems;
}

int64_t train_prompts_rows(const train_prompts *p) {
    return p->rows.count;
}

const int32_t *train_prompts_row(const train_prompts *p, int64_t row, int64_t *count) {
    RAVEL_ASSERT(row >= 0 && row < p->rows.count);
    *count = p->rows.items[row].length;
    return p->rows.tokens + p->rows.items[row].first;
}

int64_t train_prompts_longest(const train_prompts *p) {
    return p->longest;
}

int64_t train_prompts_eval_count(const train_prompts *p, int64_t wanted) {
    if (!p->options.data) return wanted;
    return train__min(wanted, train_prompts_eval_apart(p) ? p->rows.count - p->train_rows : p->rows.count);
}

int train_prompts_eval_apart(const train_prompts *p) {
    return !p->options.data || p->train_rows < p->rows.count;
}

static int64_t row_of(const train_prompts *p, int64_t index) {
    RAVEL_ASSERT(index >= 0 && p->options.data && p->rows.count > 0);
    if (index >= TRAIN_EVAL_FIRST) {
        int64_t i = index - TRAIN_EVAL_FIRST, first = train_prompts_eval_apart(p) ? p->train_rows : 0;
        return first + i % (p->rows.count - first);
    }
    ravel_order order = {.size = sizeof order, .count = p->train_rows, .seed = p->options.seed, .shuffle = 1};
    return ravel_order_row(&order, index / p->train_rows, index % p->train_rows);
}

ravel_status train_prompts_add(const train_prompts *p, int64_t index, train_rollouts *rollouts, ravel_error *err) {
    train_rollout item = {.group = index};
    if (p->options.numbers) {
        item.length = item.prompt = 1;
        return train_rollouts_add(rollouts, &item, &(int32_t){0}, NULL, NULL, err);
    }
    if (!p->task) {
        const train_rollout *row = &p->rows.items[row_of(p, index)];
        item.length = item.prompt = row->length;
        return train_rollouts_add(rollouts, &item, p->rows.tokens + row->first, NULL, NULL, err);
    }
    train_question question;
    int32_t tokens[TRAIN_TASK_TOKENS];
    train_task_make(p->task, p->options.seed, index, p->options.level, &question);
    item.length = train_task_tokens(&question, 0, tokens, &item.prompt);
    RAVEL_ASSERT(item.length > 0 && item.prompt == item.length);
    return train_rollouts_add(rollouts, &item, tokens, NULL, NULL, err);
}

const char *train_prompts_answer(const train_prompts *p, int64_t index, train_question *question, size_t *bytes) {
    const char *answer = NULL;
    *bytes = 0;
    if (p->options.numbers) return NULL;
    if (p->task) {
        train_task_make(p->task, p->options.seed, index, p->options.level, question);
        answer = question->answer;
    } else {
        answer = text_of(&p->answers, row_of(p, index));
    }
    *bytes = answer ? strlen(answer) : 0;
    return answer;
}

const char *train_prompts_line(const train_prompts *p, int64_t index) {
    return p->options.data ? text_of(&p->lines_kept, row_of(p, index)) : NULL;
}

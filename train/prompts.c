#include "train/prompts.h"

#include "train/host.h"

#include <ravel/json.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct train_prompts {
    const train_task *task; /* or: */
    uint64_t seed;
    int32_t level;
    train_pile rows; /* prompts of the file */
    char *answers;   /* NUL-terminated, one after the other; a row without one has offset -1 */
    size_t answers_used, answers_room;
    int64_t *answer_at; /* [rows] offsets */
    int64_t answer_room;
    int64_t vocab;
};

/* ---- files ---------------------------------------------------------------------------------------------- */

static ravel_status keep_answer(train_prompts *p, const ravel_json_node *node, ravel_error *err) {
    if (p->rows.count > p->answer_room) {
        int64_t room = p->answer_room ? p->answer_room * 2 : 1024;
        int64_t *grown = realloc(p->answer_at, (size_t)room * sizeof *grown);
        if (!grown) return train__no_memory(err, (size_t)room * sizeof *grown, "answers");
        p->answer_at = grown;
        p->answer_room = room;
    }
    int64_t *at = &p->answer_at[p->rows.count - 1];
    *at = -1;
    if (!node || node->kind != RAVEL_JSON_STRING) return RAVEL_OK;
    if (p->answers_room - p->answers_used < (size_t)node->bytes + 1) {
        size_t room = (p->answers_room + node->bytes + 1) * 2;
        char *grown = realloc(p->answers, room);
        if (!grown) return train__no_memory(err, room, "answers");
        p->answers = grown;
        p->answers_room = room;
    }
    *at = (int64_t)p->answers_used;
    memcpy(p->answers + p->answers_used, node->as.string, (size_t)node->bytes + 1);
    p->answers_used += (size_t)node->bytes + 1;
    return RAVEL_OK;
}

/* Tokens of a row into `tokens` (room is enough for all of the line); -1 where the row has none. */
static int64_t row_tokens(const train_prompts *p, const ravel_json *doc, const ravel_json_node *root, int32_t *tokens) {
    const ravel_json_node *text = ravel_json_get(doc, root, "prompt"), *ids = ravel_json_get(doc, root, "input_ids");
    int64_t n = 0, id;
    if (text && text->kind == RAVEL_JSON_STRING) {
        tokens[n++] = TRAIN_TOKEN_BOS;
        for (uint32_t i = 0; i < text->bytes; i++) tokens[n++] = (unsigned char)text->as.string[i];
        return n;
    }
    for (const ravel_json_node *x = ravel_json_first(doc, ids); x; x = ravel_json_next(doc, x)) {
        if (!ravel_json_integer(x, &id) || id < 0 || id >= p->vocab) return -1;
        tokens[n++] = (int32_t)id;
    }
    return n > 0 ? n : -1;
}

static ravel_status take_line(train_prompts *p, ravel_json **doc, const char *line, size_t bytes, ravel_error *err) {
    ravel_status status = ravel_json_parse(line, bytes, NULL, doc, err);
    if (status) return status;
    const ravel_json_node *root = ravel_json_root(*doc);
    int32_t *tokens = malloc((bytes + 2) * sizeof *tokens);
    if (!tokens) return train__no_memory(err, (bytes + 2) * sizeof *tokens, "a prompt");
    int64_t count = row_tokens(p, *doc, root, tokens);
    if (count < 0)
        status =
            ravel_error_set(err, RAVEL_E_DATA, "expected {\"prompt\": text} or {\"input_ids\": [tokens below %lld]}",
                            (long long)p->vocab);
    train_rollout row = {.length = count, .prompt = count};
    if (!status) status = train_pile_add(&p->rows, &row, tokens, NULL, err);
    if (!status) status = keep_answer(p, ravel_json_get(*doc, root, "answer"), err);
    free(tokens);
    return status;
}

static ravel_status read_file(train_prompts *p, const char *path, ravel_error *err) {
    FILE *f = fopen(path, "r");
    if (!f) return ravel_error_set(err, RAVEL_E_IO, "%s cannot be read", path);
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    int64_t number = 0;
    ravel_json *doc = NULL;
    ravel_status status = RAVEL_OK;
    while (!status && (bytes = getline(&line, &room, f)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)bytes) continue;
        status = take_line(p, &doc, line, (size_t)bytes, err);
        if (status) ravel_error_prefix(err, "%s:%lld", path, (long long)number);
    }
    if (!status && p->rows.count == 0) status = ravel_error_set(err, RAVEL_E_DATA, "%s holds no prompt", path);
    ravel_json_free(doc);
    free(line);
    (void)fclose(f);
    return status;
}

/* ---- the public face ------------------------------------------------------------------------------------ */

ravel_status train_prompts_open(const char *task, uint64_t seed, int32_t level, const char *data, int64_t vocab,
                                train_prompts **prompts, ravel_error *err) {
    train_prompts *p = train__calloc(NULL, 1, sizeof *p);
    if (!p) return train__no_memory(err, sizeof *p, "prompts");
    p->seed = seed;
    p->level = level;
    p->vocab = vocab;
    train_pile_init(&p->rows, NULL);
    ravel_status status = data ? read_file(p, data, err) : train_task_find(task, &p->task, err);
    if (status) {
        train_prompts_free(p);
        return status;
    }
    *prompts = p;
    return RAVEL_OK;
}

void train_prompts_free(train_prompts *p) {
    if (!p) return;
    train_pile_free(&p->rows);
    free(p->answers);
    free(p->answer_at);
    train__release(NULL, p, sizeof *p);
}

static int64_t row_of(const train_prompts *p, int64_t index) {
    return index % p->rows.count;
}

ravel_status train_prompts_add(const train_prompts *p, int64_t index, train_pile *pile, ravel_error *err) {
    train_rollout item = {.group = index};
    if (!p->task) {
        const train_rollout *row = &p->rows.items[row_of(p, index)];
        item.length = item.prompt = row->length;
        return train_pile_add(pile, &item, p->rows.tokens + row->first, NULL, err);
    }
    enum { ROOM = 2 * TRAIN_TASK_TEXT + 2 };
    train_question question;
    int32_t tokens[ROOM];
    train_task_make(p->task, p->seed, index, p->level, &question);
    item.length = train_task_tokens(&question, 0, tokens, ROOM, &item.prompt);
    return train_pile_add(pile, &item, tokens, NULL, err);
}

const char *train_prompts_answer(const train_prompts *p, int64_t index, train_question *question, size_t *bytes) {
    const char *answer = NULL;
    if (p->task) {
        train_task_make(p->task, p->seed, index, p->level, question);
        answer = question->answer;
    } else if (p->answer_at[row_of(p, index)] >= 0) {
        answer = p->answers + p->answer_at[row_of(p, index)];
    }
    *bytes = answer ? strlen(answer) : 0;
    return answer;
}

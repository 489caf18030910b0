/* The "normalizer" of tokenizer.json to rows of normal.h. */
#include "text/load.h"
#include "text/normal.h"

#include "base/assert.h"

#include <string.h>

typedef const ravel__json_node node;

static int hex_of_base64(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

size_t ravel__base64_decode(const char *text, size_t bytes, char *out) {
    size_t count = 0;
    uint32_t bits = 0;
    int held = 0;
    if (bytes % 4) return SIZE_MAX;
    for (int i = 0; i < 2 && bytes && text[bytes - 1] == '='; i++) bytes--;
    for (size_t i = 0; i < bytes; i++) {
        int six = hex_of_base64(text[i]);
        if (six < 0) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)six;
        held += 6;
        if (held >= 8) out[count++] = (char)(bits >> (held -= 8));
    }
    return count;
}

static ravel__normal *push(const ravel__loading *l) {
    RAVEL_ASSERT(l->t->normal_count < RAVEL__NORMALS);
    return &l->t->normals[l->t->normal_count++];
}

static ravel_status keep_text(const ravel__loading *l, node *n, ravel__normal *step) {
    char *copy = ravel__arena_push(&l->t->arena, (size_t)n->bytes + 1, 1);
    if (!copy) return ravel__no_memory(l->err, n->bytes, "a normalizer");
    step->text = memcpy(copy, n->as.string, (size_t)n->bytes + 1);
    step->text_bytes = n->bytes;
    return RAVEL_OK;
}

static ravel_status add_pattern(const ravel__loading *l, const char *pattern, ravel__normal *step) {
    l->t->patterns = 1;
    return ravel__regex_compile(pattern, l->t->allocator, &step->regex, l->err);
}

static ravel_status read_nfc(const ravel__loading *l, node *n) {
    (void)n;
    ravel__normal *step = push(l);
    step->apply = ravel__normal_nfc;
    step->needs = RAVEL__TEXT_SUSPECT;
    return RAVEL_OK;
}

static int is_text(node *n, const char *text) {
    return n && ravel__json_is(n, text);
}

/* A space by U+2581 is one pass over the bytes, with the Prepend of U+2581 that often goes before. */
static ravel_status add_spaces(const ravel__loading *l, int prepend, int replace) {
    ravel__normal *last = l->t->normal_count ? &l->t->normals[l->t->normal_count - 1] : NULL;
    if (!(replace && last && last->apply == ravel__normal_spaces && !last->spacing.replace)) {
        last = push(l);
        last->apply = ravel__normal_spaces;
    }
    if (prepend) last->spacing.prepend = RAVEL__PREPEND_ALWAYS;
    last->spacing.replace = replace;
    return RAVEL_OK;
}

static ravel_status read_prepend(const ravel__loading *l, node *n) {
    node *text = ravel__load_member(l, n, "prepend");
    if (is_text(text, RAVEL__SPACE)) return add_spaces(l, 1, 0);
    if (!text || text->kind != RAVEL__JSON_STRING) return ravel__load_wrong(l, "a Prepend must have a \"prepend\"");
    ravel__normal *step = push(l);
    step->apply = ravel__normal_prepend;
    return keep_text(l, text, step);
}

static ravel_status read_replace(const ravel__loading *l, node *n) {
    node *pattern = ravel__load_member(l, n, "pattern"), *content = ravel__load_member(l, n, "content");
    node *regex = ravel__load_member(l, pattern, "Regex"), *text = ravel__load_member(l, pattern, "String");
    char literal[512];
    if (!content || content->kind != RAVEL__JSON_STRING || (!regex && !text) ||
        (regex ? regex : text)->kind != RAVEL__JSON_STRING || (regex && strlen(regex->as.string) != regex->bytes))
        return ravel__load_wrong(l, "a Replace must have a \"pattern\" with \"Regex\" or \"String\", and \"content\"");
    if (is_text(text, " ") && is_text(content, RAVEL__SPACE)) return add_spaces(l, 0, 1);
    if (text && text->bytes == 0) return RAVEL_OK;
    ravel_status status = text ? ravel__load_literal(l, text, literal, sizeof literal) : RAVEL_OK;
    if (status) return status;
    ravel__normal *step = push(l);
    step->apply = ravel__normal_replace;
    status = keep_text(l, content, step);
    return status ? status : add_pattern(l, text ? literal : regex->as.string, step);
}

static ravel_status read_strip(const ravel__loading *l, node *n) {
    ravel__normal *step = push(l);
    step->apply = ravel__normal_strip;
    step->left = ravel__load_true(l, n, "strip_left");
    step->right = ravel__load_true(l, n, "strip_right");
    return RAVEL_OK;
}

static ravel_status read_precompiled(const ravel__loading *l, node *n) {
    node *map = ravel__load_member(l, n, "precompiled_charsmap");
    if (!map) return RAVEL_OK;
    if (map->kind != RAVEL__JSON_STRING) return ravel__load_wrong(l, "\"precompiled_charsmap\" must be base64");
    char *blob = ravel__arena_push(&l->t->arena, (size_t)map->bytes + 1, 1);
    if (!blob) return ravel__no_memory(l->err, map->bytes, "a character map");
    size_t bytes = ravel__base64_decode(map->as.string, map->bytes, blob);
    if (bytes == SIZE_MAX) return ravel__load_wrong(l, "\"precompiled_charsmap\" must be base64");
    if (bytes == 0) return RAVEL_OK;
    ravel__normal *step = push(l);
    step->apply = ravel__normal_precompiled;
    ravel_status status = ravel__charsmap_open(blob, bytes, &step->map, l->err);
    return status ? status : add_pattern(l, "\\X", step);
}

static ravel_status read_sequence(const ravel__loading *l, node *n) {
    node *list = ravel__load_member(l, n, "normalizers");
    ravel_status status = RAVEL_OK;
    for (node *each = list ? ravel__json_first(l->doc, list) : NULL; each && !status;
         each = ravel__json_next(l->doc, each))
        status = ravel__load_normalizer(l, each);
    return status;
}

ravel_status ravel__load_normalizer(const ravel__loading *l, const ravel__json_node *n) {
    static const struct {
        const char *type;
        ravel_status (*read)(const ravel__loading *l, node *n);
    } rows[] = {{"NFC", read_nfc},         {"Sequence", read_sequence}, {"Prepend", read_prepend},
                {"Replace", read_replace}, {"Strip", read_strip},       {"Precompiled", read_precompiled}};
    const char *type = ravel__load_type(l, n);
    if (!n) return RAVEL_OK;
    if (l->t->normal_count == RAVEL__NORMALS) return ravel__load_wrong(l, "there are more than 12 normalizers");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].type, type) == 0) return rows[i].read(l, n);
    return ravel__load_refuse(l, "normalizer", type,
                              "NFC, Prepend, Replace, Strip, Precompiled and a Sequence of them");
}

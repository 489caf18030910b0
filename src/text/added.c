/* Added tokens ("<|im_start|>") are looked for in the text before anything else: the leftmost, and of those that begin
 * at the same place the longest. */
#include "text/tokenizer.h"

#include "base/assert.h"

#include <string.h>

void ravel__added_init(ravel__added *added, ravel__arena *arena) {
    memset(added->roots, 0xff, sizeof added->roots);
    added->arena = arena;
}

/* Room for one more token. */
static ravel_status reserve(ravel__added *added, size_t bytes, ravel_error *err) {
    size_t need = (size_t)added->count + bytes, room = 2 * need + 16;
    if (need <= (size_t)added->room) return RAVEL_OK;
    if (room > INT32_MAX) return ravel_error_set(err, RAVEL_E_DATA, "the added tokens are too long");
    ravel__added_node *nodes = ravel__arena_push(added->arena, room, sizeof *nodes);
    if (!nodes) return ravel__no_memory(err, room * sizeof *nodes, "the added tokens");
    if (added->count) memcpy(nodes, added->nodes, (size_t)added->count * sizeof *nodes);
    added->nodes = nodes;
    added->room = (int32_t)room;
    return RAVEL_OK;
}

/* The node of a byte in the list that begins at *head, made where it is missing. */
static int32_t *descend(ravel__added *added, int32_t *head, uint8_t byte) {
    int32_t *link = head;
    while (*link >= 0 && added->nodes[*link].byte != byte) link = &added->nodes[*link].sibling;
    if (*link < 0) {
        RAVEL_ASSERT(added->count >= 0 && added->count < added->room);
        added->nodes[added->count] = (ravel__added_node){-1, -1, RAVEL__NO_ID, byte, 0};
        *link = added->count++;
    }
    return link;
}

ravel_status ravel__added_add(ravel__added *added, const char *text, size_t bytes, int32_t id, int flags,
                              ravel_error *err) {
    RAVEL_ASSERT(bytes > 0 && id >= 0);
    ravel_status status = reserve(added, bytes, err);
    if (status) return status;
    int32_t *head = &added->roots[(unsigned char)text[0]], node = -1;
    for (size_t i = 0; i < bytes; i++) {
        node = *descend(added, head, (uint8_t)text[i]);
        head = &added->nodes[node].child;
    }
    RAVEL_ASSERT(node >= 0 && node < added->count);
    added->nodes[node].id = id;
    added->nodes[node].flags = (uint8_t)flags;
    return RAVEL_OK;
}

static int32_t step(const ravel__added *added, int32_t node, uint8_t byte) {
    while (node >= 0 && added->nodes[node].byte != byte) node = added->nodes[node].sibling;
    return node;
}

int ravel__added_find(const ravel__added *added, const char *text, size_t bytes, size_t from, size_t *begin,
                      size_t *end, int32_t *id, int *flags) {
    RAVEL_ASSERT(from <= bytes);
    if (added->count == 0) return 0;
    for (size_t at = from; at < bytes; at++) {
        int32_t node = added->roots[(unsigned char)text[at]], best = -1;
        for (size_t i = at; node >= 0;) {
            i++;
            if (added->nodes[node].id != RAVEL__NO_ID) best = node, *end = i;
            node = i < bytes ? step(added, added->nodes[node].child, (uint8_t)text[i]) : -1;
        }
        if (best < 0) continue;
        RAVEL_ASSERT(*end > at && *end <= bytes);
        *begin = at;
        *id = added->nodes[best].id;
        *flags = added->nodes[best].flags;
        return 1;
    }
    return 0;
}

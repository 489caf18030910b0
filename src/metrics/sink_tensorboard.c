/* TensorBoard event files, written by hand.
 *
 *     file     = record*                     FOLDER/events.out.tfevents.SECONDS.HOST.PID.N
 *     record   = length u64 | crc(length) u32 | data | crc(data) u32          little-endian
 *     crc(x)   = rotate(CRC-32C of x, 15) + 0xa282ead8
 *     data     = Event { 1: wall_time double, 2: step int64, 3: file_version string | 5: Summary | 7: SessionLog }
 *     Summary  = { 1: Value { 1: tag string, 2: simple_value float } }*
 *     SessionLog = { 1: status varint, 1 being START }
 *
 * The first record carries the version "brain.Event:2". A resumed run opens a new file with the same prefix, as
 * TensorFlow does; TensorBoard reads all files of a folder in the order of their names. Before a file's first update
 * stands a START with its step: TensorBoard then forgets what an earlier file says from that step on, so that updates
 * that a resumed run repeats are not drawn twice. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/system/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct event_sink {
    ravel__sink sink;
    ravel__appender file;
    int begun;           /* the START is written */
    uint32_t table[256]; /* of the CRC */
} event_sink;

/* ---- CRC-32C (Castagnoli, reflected 0x82f63b78) --------------------------------------------------------- */

static void fill_table(uint32_t *table) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        table[i] = crc;
    }
}

static uint32_t masked_crc(const uint32_t *table, const char *data, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) crc = crc >> 8 ^ table[(crc ^ (unsigned char)data[i]) & 255];
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* ---- protobuf ------------------------------------------------------------------------------------------- */

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(ravel__text *t, uint64_t x) {
    do {
        char byte = (char)((x & 127) | (x > 127 ? 128 : 0));
        ravel__text_put(t, &byte, 1);
    } while (x >>= 7);
}

static size_t varint_bytes(uint64_t x) {
    size_t bytes = 1;
    while (x >>= 7) bytes++;
    return bytes;
}

static void put_tag(ravel__text *t, int field, enum wire wire) {
    RAVEL_ASSERT(field >= 1 && field < 16);
    put_varint(t, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_little(ravel__text *t, uint64_t x, int bytes) {
    RAVEL_ASSERT(bytes == 4 || bytes == 8);
    for (int i = 0; i < bytes; i++) {
        char byte = (char)(x >> (8 * i));
        ravel__text_put(t, &byte, 1);
    }
}

static void put_double(ravel__text *t, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_little(t, bits, 8);
}

static void put_float(ravel__text *t, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_little(t, bits, 4);
}

/* ---- events --------------------------------------------------------------------------------------------- */

enum { HEADER = 12, FOOTER = 4 };

/* A Value without its own tag and length: 1 + varint + name, then 1 + 4. */
static size_t value_bytes(const char *name) {
    size_t length = strlen(name);
    return 1 + varint_bytes(length) + length + 5;
}

static size_t summary_bytes(const ravel_metrics *m, const ravel__snapshot *u) {
    size_t bytes = 0;
    for (int32_t id = 0; id < m->rows; id++) {
        if (u && !ravel__shown(m, u, id)) continue;
        size_t value = value_bytes(m->row[id].name);
        bytes += 1 + varint_bytes(value) + value;
    }
    return bytes;
}

static void put_value(ravel__text *t, const char *name, double x) {
    put_tag(t, 1, BYTES);
    put_varint(t, value_bytes(name));
    put_tag(t, 1, BYTES);
    put_varint(t, strlen(name));
    ravel__text_puts(t, name);
    put_tag(t, 2, FIXED32);
    put_float(t, (float)x);
}

/* The record's data stands in the buffer after room for the header; the frame goes around it. */
static ravel_status put_record(event_sink *s, ravel__text *t, ravel_error *err) {
    RAVEL_ASSERT(t->used > HEADER);
    size_t bytes = t->used - HEADER;
    ravel__text head = ravel__text_begin(t->data, HEADER);
    put_little(&head, bytes, 8);
    put_little(&head, masked_crc(s->table, t->data, 8), 4);
    put_little(t, masked_crc(s->table, t->data + HEADER, bytes), 4);
    RAVEL_ASSERT(head.used == HEADER && t->used == HEADER + bytes + FOOTER);
    return ravel__appender_put(&s->file, t->data, t->used, err);
}

static ravel__text begin_event(event_sink *s, double time) {
    RAVEL_ASSERT(s->sink.text_room > HEADER + FOOTER);
    ravel__text t = ravel__text_begin(s->sink.text, s->sink.text_room);
    t.used = HEADER;
    put_tag(&t, 1, FIXED64);
    put_double(&t, time);
    return t;
}

static ravel__text begin_update(event_sink *s, const ravel__snapshot *u) {
    ravel__text t = begin_event(s, (double)u->time_ns / 1e9);
    put_tag(&t, 2, VARINT);
    put_varint(&t, (uint64_t)u->step);
    return t;
}

static ravel_status write_start(event_sink *s, const ravel__snapshot *u, ravel_error *err) {
    RAVEL_ASSERT(!s->begun);
    ravel__text t = begin_update(s, u);
    put_tag(&t, 7, BYTES);
    put_varint(&t, 2);
    put_tag(&t, 1, VARINT);
    put_varint(&t, 1);
    ravel_status status = put_record(s, &t, err);
    s->begun = !status;
    return status;
}

static ravel_status write_events(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    event_sink *s = (event_sink *)sink;
    const ravel_metrics *m = sink->metrics;
    ravel_status status = s->begun ? RAVEL_OK : write_start(s, u, err);
    if (status) return status;
    ravel__text t = begin_update(s, u);
    put_tag(&t, 5, BYTES);
    put_varint(&t, summary_bytes(m, u));
    size_t before = t.used;
    for (int32_t id = 0; id < m->rows; id++)
        if (ravel__shown(m, u, id)) put_value(&t, m->row[id].name, ravel__real(m, u, id));
    RAVEL_ASSERT(t.used - before == summary_bytes(m, u)); /* the length that stands before them */
    (void)before;
    return put_record(s, &t, err);
}

/* A new file of this process; the folder is made if its parent exists. */
static ravel_status create_file(event_sink *s, const char *folder, double now, ravel_error *err) {
    char host[65] = "localhost", path[4096];
    (void)gethostname(host, sizeof host - 1);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return ravel__file_error(err, folder, "cannot make the folder", errno);
    for (int number = 0; number < 10000; number++) {
        int length = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", folder, (long long)now,
                              host, (long)getpid(), number);
        if (length < 0 || (size_t)length >= sizeof path)
            return ravel__file_error(err, folder, "cannot use", ENAMETOOLONG);
        s->file.fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (s->file.fd >= 0 || errno != EEXIST) break;
    }
    if (s->file.fd < 0) return ravel__file_error(err, path, "cannot create", errno);
    RAVEL_ASSERT(s->file.fd >= 0 && s->file.end == 0);
    s->file.own = s->file.regular = 1;
    return RAVEL_OK;
}

static ravel_status open_events(ravel__sink *sink, const char *target, ravel_error *err) {
    event_sink *s = (event_sink *)sink;
    s->file.fd = -1;
    fill_table(s->table);
    if (!*target) return ravel_error_set(err, RAVEL_E_ARGUMENT, "it needs a folder: tensorboard:FOLDER");
    ravel_status status = ravel__sink_room(sink, summary_bytes(sink->metrics, NULL) + 128, err);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (!status) status = create_file(s, target, now, err);
    if (status) return status;
    ravel__text event = begin_event(s, now);
    put_tag(&event, 3, BYTES);
    put_varint(&event, strlen("brain.Event:2"));
    ravel__text_puts(&event, "brain.Event:2");
    RAVEL_ASSERT(!event.cut);
    return put_record(s, &event, err);
}

static void close_events(ravel__sink *sink) {
    ravel__appender_close(&((event_sink *)sink)->file);
}

const ravel__sink_type ravel__sink_tensorboard = {"tensorboard", 0,           sizeof(event_sink), open_events,
                                                  write_events,  close_events};

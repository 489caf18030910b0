/* The only file that includes OpenSSL: libravel_tls.so.
 *
 * OpenSSL reads and writes the socket through a BIO of ours, since its own would raise SIGPIPE in the caller's
 * process. That rules out kernel TLS, which OpenSSL only uses through its own; it would save one of the two copies of
 * a sent byte, not the cipher.
 *
 * Records are collected in `held` and sent together. What was encrypted and not sent yet is not reported as written:
 * the caller gives the same bytes again, which are then those of `held`. */
#include "comm/tls.h"

#include <ravel/base.h>

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { RECORD = 16384, AROUND = 64 /* a record, at most */, TOGETHER = 16 /* records */, READ_AHEAD = 128 << 10 };
static const char identity[] = "ravel";

typedef struct context {
    SSL_CTX *ssl;
    BIO_METHOD *method;
    int certificates;
} context;

typedef struct session {
    SSL *ssl;
    int fd, accepts;
    uint8_t key[RAVEL__TLS_KEY];
    uint8_t record[RECORD];
    uint8_t *held;               /* [room] records: of the bytes at .. end, which are to be sent */
    size_t room, at, end, plain; /* plain: bytes of the caller in them */
    int collects;
} session;

/* ---- the socket -------------------------------------------------------------------------------------------- */

static int failed_for_now(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* Records that are collected, and those that OpenSSL makes by itself while others wait, which must not overtake
 * them. */
static int hold(session *s, const char *from, size_t bytes) {
    if (bytes > s->room - s->end) return 0;
    memcpy(s->held + s->end, from, bytes);
    s->end += bytes;
    return 1;
}

static int socket_write(BIO *bio, const char *from, int bytes) {
    session *s = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (s->collects || s->at < s->end) {
        if (hold(s, from, (size_t)bytes)) return bytes;
        BIO_set_retry_write(bio);
        return -1;
    }
    ssize_t sent = send(s->fd, from, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && failed_for_now()) BIO_set_retry_write(bio);
    return (int)sent;
}

static int socket_read(BIO *bio, char *to, int bytes) {
    const session *s = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got = recv(s->fd, to, (size_t)bytes, MSG_DONTWAIT);
    if (got < 0 && failed_for_now()) BIO_set_retry_read(bio);
    return (int)got;
}

static long socket_control(BIO *bio, int command, long number, void *at) {
    (void)bio, (void)number, (void)at;
    return command == BIO_CTRL_FLUSH;
}

/* ---- the key ----------------------------------------------------------------------------------------------- */

/* A session that stands for the pre-shared key. */
static SSL_SESSION *key_session(SSL *ssl) {
    static const unsigned char aes_128_gcm[2] = {0x13, 0x01};
    const session *s = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm);
    SSL_SESSION *made = SSL_SESSION_new();
    if (made && cipher && SSL_SESSION_set1_master_key(made, s->key, sizeof s->key) &&
        SSL_SESSION_set_cipher(made, cipher) && SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION))
        return made;
    SSL_SESSION_free(made);
    return NULL;
}

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_bytes, SSL_SESSION **made) {
    *made = NULL;
    if (md && EVP_MD_get_size(md) != RAVEL__TLS_KEY) return 1; /* of another hash: no key for it */
    *made = key_session(ssl);
    *id = (const unsigned char *)identity;
    *id_bytes = sizeof identity - 1;
    return *made != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **made) {
    int known = id_bytes == sizeof identity - 1 && memcmp(id, identity, id_bytes) == 0;
    *made = known ? key_session(ssl) : NULL;
    return !known || *made;
}

/* ---- contexts ---------------------------------------------------------------------------------------------- */

static void explain(char *why, const char *what, const char *file) {
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    (void)snprintf(why, RAVEL__TLS_WHY, "%s%.120s: %.80s", what, file, reason ? reason : "no memory");
    ERR_clear_error();
}

static void close_context(void *at) {
    context *c = at;
    if (!c) return;
    SSL_CTX_free(c->ssl);
    BIO_meth_free(c->method);
    free(c);
}

static int use_files(context *c, const ravel__tls_files *files, char *why) {
    if (SSL_CTX_use_certificate_chain_file(c->ssl, files->certificate) != 1)
        return explain(why, "the certificate cannot be used: ", files->certificate), 0;
    if (SSL_CTX_use_PrivateKey_file(c->ssl, files->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(c->ssl) != 1)
        return explain(why, "the key cannot be used: ", files->key), 0;
    if (SSL_CTX_load_verify_locations(c->ssl, files->authorities, NULL) != 1)
        return explain(why, "the authorities cannot be used: ", files->authorities), 0;
    SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    c->certificates = 1;
    return 1;
}

static int prepare(context *c) {
    c->ssl = SSL_CTX_new(TLS_method());
    c->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ravel socket");
    if (!c->ssl || !c->method || !SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(c->ssl, "TLS_AES_128_GCM_SHA256"))
        return 0;
    SSL_CTX_set_options(c->ssl, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_TICKET);
    SSL_CTX_set_mode(c->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_num_tickets(c->ssl, 0);
    SSL_CTX_set_read_ahead(c->ssl, 1); /* many records per call of the system */
    SSL_CTX_set_default_read_buffer_len(c->ssl, READ_AHEAD);
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    return BIO_meth_set_write(c->method, socket_write) && BIO_meth_set_read(c->method, socket_read) &&
           BIO_meth_set_ctrl(c->method, socket_control);
}

static void *open_context(const ravel__tls_files *files, char *why) {
    context *c = calloc(1, sizeof *c);
    if (c && prepare(c) && (!files->certificate || use_files(c, files, why))) return c;
    if (!why[0]) explain(why, "TLS cannot be used", "");
    close_context(c);
    return NULL;
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

static void end(void *at) {
    session *s = at;
    if (!s) return;
    SSL_free(s->ssl);
    explicit_bzero(s->key, sizeof s->key);
    free(s->held);
    free(s);
}

static void *begin(void *at, int fd, int accepts, const uint8_t key[RAVEL__TLS_KEY]) {
    const context *c = at;
    session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->fd = fd, s->accepts = accepts;
    memcpy(s->key, key, sizeof s->key);
    s->ssl = SSL_new(c->ssl);
    BIO *bio = s->ssl ? BIO_new(c->method) : NULL;
    if (!bio) {
        end(s);
        return NULL;
    }
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    SSL_set_bio(s->ssl, bio, bio);
    SSL_set_app_data(s->ssl, s);
    if (!c->certificates && accepts) SSL_set_psk_find_session_callback(s->ssl, find_key);
    if (!c->certificates && !accepts) SSL_set_psk_use_session_callback(s->ssl, use_key);
    if (accepts)
        SSL_set_accept_state(s->ssl);
    else
        SSL_set_connect_state(s->ssl);
    return s;
}

static int handshake(void *at, int *writes, char *why) {
    session *s = at;
    ERR_clear_error();
    int done = SSL_do_handshake(s->ssl), code = done == 1 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, done);
    *writes = code == SSL_ERROR_WANT_WRITE;
    if (done == 1) return 1;
    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) return 0;
    if (code == SSL_ERROR_ZERO_RETURN || (code == SSL_ERROR_SYSCALL && ERR_peek_error() == 0))
        why[0] = '\0'; /* closed */
    else
        explain(why, "TLS was not agreed", "");
    return -1;
}

/* What OpenSSL says of a call that moved nothing, as the system would. */
static ssize_t failed(session *s, int result) {
    int code = SSL_get_error(s->ssl, result);
    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) return errno = EAGAIN, -1;
    if (code == SSL_ERROR_ZERO_RETURN) return 0;
    if (code == SSL_ERROR_SYSCALL) return errno ? -1 : 0;
    ERR_clear_error();
    return errno = EBADMSG, -1;
}

static ssize_t read_some(void *at, void *to, size_t bytes) {
    session *s = at;
    size_t got = 0;
    ERR_clear_error();
    errno = 0;
    int result = SSL_read_ex(s->ssl, to, bytes, &got);
    return result == 1 ? (ssize_t)got : failed(s, result);
}

/* The next record's bytes, out of pieces of which *done are taken: where they lie, or put together. */
static const void *next_record(session *s, const struct iovec **list, int *count, size_t *done, size_t *bytes) {
    const uint8_t *from = (const uint8_t *)(*list)->iov_base + *done;
    int direct = (*list)->iov_len - *done >= RECORD;
    for (*bytes = 0; *count > 0 && *bytes < RECORD;) {
        size_t left = (*list)->iov_len - *done, part = left < RECORD - *bytes ? left : RECORD - *bytes;
        if (!direct) memcpy(s->record + *bytes, (const uint8_t *)(*list)->iov_base + *done, part);
        *bytes += part;
        *done += part;
        if (*done < (*list)->iov_len) continue;
        (*list)++, (*count)--;
        *done = 0;
    }
    return direct ? from : s->record;
}

/* Encrypts the first bytes of the list into `held`; 1, or what OpenSSL says. */
static int collect(session *s, const struct iovec *list, int count) {
    size_t done = 0, bytes, sent;
    int result = 1;
    s->at = s->end = s->plain = 0;
    s->collects = 1;
    ERR_clear_error();
    for (int n = 0; n < TOGETHER && count > 0 && result == 1; n++) {
        const void *from = next_record(s, &list, &count, &done, &bytes);
        result = SSL_write_ex(s->ssl, from, bytes, &sent);
        if (result == 1) s->plain += sent;
        if (result == 1 && sent < bytes) break;
    }
    s->collects = 0;
    return result;
}

/* Room for the records of this list, of at most TOGETHER. */
static int make_room(session *s, const struct iovec *list, int count) {
    size_t bytes = 0, most = (size_t)TOGETHER * RECORD;
    for (int i = 0; i < count && bytes < most; i++) bytes += list[i].iov_len;
    size_t need = (bytes < most ? bytes : most) + (TOGETHER + 2) * AROUND;
    if (need <= s->room) return 1;
    uint8_t *grown = realloc(s->held, need);
    if (!grown) return 0;
    s->held = grown;
    s->room = need;
    return 1;
}

static ssize_t write_some(void *at, const struct iovec *list, int count) {
    session *s = at;
    if (s->at == s->end) {
        if (!make_room(s, list, count)) return errno = ENOMEM, -1;
        errno = 0;
        int result = collect(s, list, count);
        if (result != 1) return failed(s, result) == 0 ? (errno = EPIPE, -1) : -1;
    }
    while (s->at < s->end) {
        ssize_t sent = send(s->fd, s->held + s->at, s->end - s->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) return -1;
        s->at += (size_t)sent;
    }
    return (ssize_t)s->plain;
}

static int pending(const void *at) {
    return SSL_has_pending(((const session *)at)->ssl);
}

RAVEL_API const ravel__tls *ravel_tls(void);
const ravel__tls *ravel_tls(void) {
    static const ravel__tls table = {RAVEL__TLS_VERSION, sizeof table, open_context, close_context, begin, end,
                                     handshake,          read_some,    write_some,   pending};
    return &table;
}

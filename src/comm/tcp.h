/* TCP as a wire: tcp.c (frames and transfers over links), tcp_meet.c (how the ranks of a world find one another). */
#ifndef RAVEL_COMM_TCP_H
#define RAVEL_COMM_TCP_H

#include "comm/launch.h"
#include "comm/link/link.h"
#include "comm/wire.h"

enum { TCP_ADDRESS_MOST = 256, TCP_FRAME_MOST = 8192 + 64, TCP_PIECE = 4 << 20 };
/* Kinds of link messages. */
enum { TCP_FRAME = 1, TCP_DATA, TCP_TABLE, TCP_HELLOS };

/* A frame for a peer whose link is not up yet, or from one before the world is ready. */
typedef struct tcp_waiting {
    struct tcp_waiting *next;
    int32_t peer, bytes;
    char data[];
} tcp_waiting;

typedef struct tcp_peer {
    ravel__net *net;
    int32_t rank;
    ravel__link *out;      /* what this rank sends on: chosen once, so that what it sends stays in order */
    ravel__link *from;     /* what it sent on last; NULL: nothing came yet */
    ravel__link *links[2]; /* [0]: made by this rank; [1]: by the peer */
    int32_t out_is_up, lost;
    uint64_t claim;   /* the world that its link named, before this rank knew it */
    int64_t dying_ns; /* when one of two links went down; what the other holds is read first. 0: both are up */
    int32_t left;     /* it was closed by a peer that left, which closes the other one too */
    char why[256];    /* the first of the two went down */
    tcp_waiting *waiting;
    int64_t given, waiting_count; /* frames and pieces so far; in the list */
    ravel__transfer *receives;    /* linked through `inside`; `moved`: the bytes that have come */
    char *frames[2]; /* [TCP_FRAME_MOST] of each of `links`: a frame comes in pieces; NULL: none came yet */
} tcp_peer;

typedef enum tcp_state { TCP_MEETS, TCP_RUNS, TCP_CLOSES } tcp_state;

/* A rank's hello when it connects. Checked by the reader. */
typedef struct tcp_hello {
    uint32_t magic, version;
    int32_t rank, ranks;
    uint64_t world;   /* 0 at the first meeting; then the number that rank 0 gave the world */
    uint64_t machine; /* Unix sockets work between equal ones */
    char address[TCP_ADDRESS_MOST];
} tcp_hello;
enum { TCP_MAGIC = 0x54637033, TCP_VERSION = 1 };

/* The world as sent by rank 0: this, then in a second message the hellos of all ranks. */
typedef struct tcp_table {
    uint32_t magic;
    int32_t ranks, rank; /* rank: the reader's */
    int32_t reserved;
    uint64_t world;
} tcp_table;

struct ravel__net {
    ravel__hub *hub;
    ravel__wire_events events;
    tcp_state state;
    int32_t rank, ranks, met, dying;
    uint64_t world, machine;
    double timeout;
    tcp_peer *peers;         /* [ranks] */
    tcp_hello *hellos;       /* [ranks] */
    tcp_hello *incoming;     /* [ranks] those of rank 0, until they are whole and checked */
    ravel__link **arrivals;  /* [ranks] rank 0, while meeting; the same for those without a number: */
    ravel__link **loose;     /* [ranks] */
    tcp_hello *loose_hellos; /* [ranks] */
    int32_t loose_count, refused;
    ravel__link *root;             /* the others, while meeting */
    int32_t ready;                 /* events may be reported */
    int32_t woken;                 /* a thread that slept saw that there is something to do; atomic */
    tcp_waiting *early;            /* frames that came before */
    char table[TCP_FRAME_MOST];    /* from rank 0, while meeting */
    char file[RAVEL__LAUNCH_TEXT]; /* of a file rendezvous, to be removed */
    char why[480];
};

/* Opens the hub and meets the other ranks: 0 or a code, with a sentence in net->why. */
int ravel__tcp_meet(ravel__net *net, const ravel_comm_options *options, const ravel__launch *launch, const char *token,
                    int64_t deadline_ns);
/* Handlers while meeting. */
int ravel__tcp_meet_up(ravel__net *net, ravel__link *link, const void *hello, int32_t bytes);
void ravel__tcp_meet_message(ravel__net *net, uint32_t kind, const void *body, int64_t bytes);
void ravel__tcp_meet_down(ravel__net *net, ravel__link *link, const char *why);

/* The hello from a wire: 0 if it is none. Pure; fuzzed. */
int ravel__tcp_read_hello(const void *bytes, int64_t count, tcp_hello *hello);
/* The table from a wire: 0 if it is not one of a world with this number of ranks. Pure; fuzzed. */
int ravel__tcp_read_table(const void *bytes, int64_t count, int32_t ranks, tcp_table *table);

/* The handler of a net's hub. */
ravel__hub_handler ravel__tcp_handler(ravel__net *net);
/* The peer of that rank as if nothing had ever come from it: closes its links, and drops its frames. */
void ravel__tcp_forget(ravel__net *net, int32_t peer, const char *why);
/* A link belongs to a peer from now on. */
void ravel__tcp_adopt(ravel__net *net, ravel__link *link, int32_t peer, int own);

extern const ravel__wire ravel__tcp_wire;

#endif

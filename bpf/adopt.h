/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a pass of adoption is told, and what it tells. */
#ifndef SOCKHEALTH_ADOPT_H
#define SOCKHEALTH_ADOPT_H

#include "sockhealth.h"

/* What a pass that takes leave gives back. */
enum sh_leave {
	SH_LEAVE_NOT,
	SH_LEAVE_ALL,	   /* as if no policy named any */
	SH_LEAVE_CONNECTS, /* the user timeout of connect() calls under way, and nothing else */
};

/* One pass over one namespace. Only one runs at a time. */
struct sh_pass {
	__u64 id;	/* of this pass alone: what an earlier one noted says nothing */
	__u64 began_ns; /* the agent: the judgements of one before it have ended with it */
	__u32 budget;	/* keepalives that it may still set off */
	__u32 put_off;	/* connections that found none left */
	__u16 port_lo;	/* net.ipv4.ip_local_port_range */
	__u16 port_hi;
	/* The namespace's own keepalive, which a socket without one has. */
	__u16 idle_s;
	__u16 interval_s;
	__u8 count;
	__u8 blind;	/* a listener could not be noted */
	__u8 callbacks; /* callback flags can be set from outside (Linux >= 6.12) */
	__u8 leave;	/* enum sh_leave */
	__u8 pad[4];
};

/*
 * A listener of the namespace, noted three ways: by its address, once more with
 * 0.0.0.0 where it is :: and takes IPv4, and with all bits set for its port alone.
 */
struct sh_listener {
	__u32 netns;
	__u16 port;
	__u16 pad;
	__u8 addr[16];
};

enum sh_adopt_outcome {
	SH_ADOPT_MANAGED = 1, /* has had a record */
	SH_ADOPT_ADOPTED,     /* has one now */
	SH_ADOPT_CHANGED,     /* policy or what it wants differs from the record */
	SH_ADOPT_DRIFTED,     /* its options were changed behind the record */
	SH_ADOPT_RELEASED,    /* no policy names it any more */
	SH_ADOPT_REFUSED,     /* named, and not ours to touch */
	SH_ADOPT_LISTENER,    /* no connection: a key of sh_listeners */
};

/* Why a connection is refused. */
enum sh_refusal {
	SH_REFUSE_NONE,
	SH_REFUSE_MPTCP,
	SH_REFUSE_MD5_OR_AO,
	SH_REFUSE_REPAIR,
	SH_REFUSE_KERNEL, /* the kernel uses it itself */
	SH_REFUSE_ORPHAN,
	SH_REFUSE_ERROR, /* no memory for the record */
};

/* What a pending connection waits for. */
enum sh_wait {
	SH_WAIT_NONE,
	SH_WAIT_BUDGET, /* a keepalive may be set off */
	SH_WAIT_PACKET, /* a packet from the peer that is younger than idle */
	SH_WAIT_STUCK,	/* an answer to what was sent: it may be dead already */
	SH_WAIT_WINDOW, /* the peer's window opens */
	SH_WAIT_PROBER, /* a judgement ends */
	SH_WAIT_ERROR,	/* the kernel refused an option */
};

/* What became of one socket. */
struct sh_adoption {
	__u64 cookie;
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 netns;
	__u32 policy;
	__u32 bound_dev;
	__u8 state;
	__u8 family;
	__u8 direction;
	__u8 flags;   /* enum sh_record_flags */
	__u8 outcome; /* enum sh_adopt_outcome */
	__u8 refusal; /* enum sh_refusal */
	__u8 wait;    /* enum sh_wait */
	__u8 pad[1];
};

#endif

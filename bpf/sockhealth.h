/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The contract between the BPF programs and the agent. Go sees these structs
 * through bpf2go (internal/loader), never by hand.
 *
 * Addresses are IPv6, network byte order; IPv4 is ::ffff:a.b.c.d. Ports are in
 * host byte order. Times are nanoseconds of CLOCK_MONOTONIC unless the name
 * says otherwise. Every struct has fixed-width fields and explicit padding.
 */
#ifndef SOCKHEALTH_H
#define SOCKHEALTH_H

#define SH_MAX_RULES	  64	/* rules of one prefix, its ancestors' included */
#define SH_MAX_PREFIXES	  16384 /* prefixes of one policy */
#define SH_MAX_POLICIES	  4096	/* policies with counters of their own, gone ones included */
#define SH_RECORD_VERSION 1
/* How long adoption leaves a provoked socket alone: longer than any probe window. */
#define SH_LEAVE_NS 120000000000ULL
/* The TCP_KEEPIDLE that provokes a keepalive, in seconds. */
#define SH_PROVOKED_S 1
/* Goes up when a rule or an event changes its meaning and not its size: what of
 * them is pinned is not used by another build then. */
#define SH_LAYOUT 3

enum sh_direction {
	SH_OUTBOUND = 1,
	SH_INBOUND = 2,
	SH_BOTH = 3, /* in rules only: a mask */
};

/* What to do with what the application asks for. */
enum sh_override {
	SH_TIGHTEN = 0, /* the application may only shorten */
	SH_ENFORCE = 1, /* the policy's values, whatever it asks */
	SH_ALLOW = 2,	/* the application's values where it sets any */
};

enum sh_option {
	SH_OPT_KEEPALIVE,
	SH_OPT_KEEPIDLE,
	SH_OPT_KEEPINTVL,
	SH_OPT_KEEPCNT,
	SH_OPT_USER_TIMEOUT,
	SH_OPT_MAX,
};

/*
 * The five options, and the limit of the retransmission timeout that stands in for
 * the user timeout (TCP_RTO_MAX_MS). 0 in a time or count: not set, the kernel's
 * default.
 */
struct sh_options {
	__u32 user_timeout_ms;
	__u16 idle_s;
	__u16 interval_s;
	__u8 count;
	__u8 keepalive; /* 0 or 1 */
	__u8 asked;	/* of an application: which it set since, 1 << enum sh_option */
	__u8 rto_max;	/* in tenths of a second; 0: the kernel's own */
};

/* Key of the policy trie. */
struct sh_prefix {
	__u32 prefixlen; /* 0..128, IPv4 /24 is 120 */
	__u8 addr[16];
};

enum sh_rule_flags {
	SH_LEAVE_EXISTING = 1 << 0, /* a connection that was not seen to open is left alone */
	SH_TAKE_KERNELS = 1 << 1,   /* the kernel's own connections are managed, too */
};

/* One way to match below a prefix. */
struct sh_rule {
	__u32 policy; /* id of the policy, key of its counters */
	__u16 port_lo;
	__u16 port_hi;	/* inclusive */
	__u8 direction; /* mask of enum sh_direction */
	__u8 override;	/* enum sh_override */
	__u8 flags;	/* enum sh_rule_flags */
	__u8 pad;
	__u32 connect_ms; /* bound of connect(), 0: none */
	struct sh_options options;
};

/* Value of the policy trie: the first rule that matches wins. */
struct sh_rules {
	__u32 count;
	__u32 pad;
	struct sh_rule rule[SH_MAX_RULES];
};

enum sh_record_flags {
	SH_ADOPTED = 1 << 0,	/* open before the programs saw it: direction inferred */
	SH_AMBIGUOUS = 1 << 1,	/* the inference is not certain: bound it, never close it */
	SH_PENDING = 1 << 2,	/* not all that the policy wants is set yet */
	SH_RELEASING = 1 << 3,	/* no policy names it any more; what it had is not all back */
	SH_PROVOKED = 1 << 4,	/* TCP_KEEPIDLE is the prober's, SH_PROVOKED_S */
	SH_CONNECTING = 1 << 5, /* no connection yet: the user timeout is that of connect() */
	SH_GUARDED = 1 << 6,	/* the user timeout is the guard's: the peer does not read */
};

/* What the silence watch remembers of a connection (silence.bpf.c). */
struct sh_quiet {
	__u32 una;	/* the oldest byte that a pass saw unacknowledged, */
	__u32 since_ms; /* out since then, of CLOCK_MONOTONIC; 0: none was */
	/* In 8 bits 1 and how often it was suspected, 0: never seen to wait; then the
	 * low 24 of rcv_nxt, or of snd_una where data is out: of other data it says
	 * nothing. */
	__u32 asked;
};

/*
 * Kept in the socket itself (SK_STORAGE), longer than any build: what is added
 * takes spare words, or stands at the end and makes the record longer. Either way
 * a new build reads an old record as one whose new fields are 0 (convert.bpf.c).
 */
struct sh_record {
	__u8 version; /* SH_RECORD_VERSION */
	__u8 direction;
	__u8 override;
	__u8 flags; /* enum sh_record_flags */
	__u32 policy;
	__u64 opened_ns;	     /* with SH_CONNECTING: when connect() began */
	struct sh_options policed;   /* the policy's */
	struct sh_options app;	     /* last asked for by the application */
	struct sh_options effective; /* set on the socket */
	__u32 held_ms;		     /* of CLOCK_MONOTONIC: when the application last set one */
	__u64 leave_ns;		     /* until then the options are the prober's */
	__u32 connect_ms;	     /* the policy's bound of connect(), 0: none */
	struct sh_quiet quiet;
	/* The last user timeout that the guard set, kept when it is over: an application's
	 * call that was under way may set it once more. Whoever finds it on the socket
	 * takes effective's for what is set. */
	__u32 guard_ms;
	__u32 rto_was_ms;   /* TCP_RTO_MAX_MS before one of ours was set, 0: none is */
	__u32 guard_was_ms; /* the one before guard_ms: it is the guard's, too */
	__u16 guard_s;	    /* of CLOCK_MONOTONIC: when the guard last saw to it */
	__u16 pace;	    /* TCP_RTO_MAX_MS that the guard set, in tenths of a second; 0: none */
	/* The TCP_KEEPCNT that the prober has set, to make room for what it provoked; 0:
	 * none. Kept until the peer is heard; effective's is what is meant. */
	__u8 room;
	__u8 unused[3];
	__u32 spare;
};

/* Why a connection ended, as the kernel saw it. */
enum sh_cause {
	SH_CAUSE_NORMAL,    /* FIN, or closed by the application */
	SH_CAUSE_RESET,	    /* RST from the peer */
	SH_CAUSE_IDLE,	    /* bound reached, nothing in flight */
	SH_CAUSE_IN_FLIGHT, /* bound reached, data unacknowledged */
	SH_CAUSE_DESTROYED, /* SOCK_DESTROY: ours or somebody else's */
	SH_CAUSE_OTHER,	    /* another error */
	SH_CAUSE_MAX,
	/* The bound of connect() ended it: no connection was made, and none closed. */
	SH_CAUSE_CONNECT = SH_CAUSE_MAX,
};

/* Per policy, per CPU. They outlive a build: new ones stand at the end. */
struct sh_counters {
	__u64 opened[2]; /* outbound, inbound */
	__u64 closed[SH_CAUSE_MAX];
	__u64 bytes_received; /* of closed connections */
	__u64 bytes_acked;
	__u64 stalls; /* first retransmission timeouts */
	/* Application writes: kept as asked, held at the bound, let through
	 * although looser (SH_ALLOW), and results whose user timeout had to be
	 * raised so that lost probes are forgiven. */
	__u64 override_kept;
	__u64 override_held;
	__u64 override_allowed;
	__u64 override_raised;
	/* Connections that came under the policy and left it while open, by a pass
	 * of adoption, and those whose options such a pass found changed. */
	__u64 adopted;
	__u64 released;
	__u64 drifted;
	__u64 connects_bounded; /* connect() calls that the policy's bound ended */
	__u64 guarded;		/* times that a peer without window was guarded */
};

/* Everything that can go wrong in a program, counted per CPU. The counts outlive
 * a build: new reasons stand at the end. */
enum sh_fault {
	SH_FAULT_NO_SOCK,	/* sockops without a full socket */
	SH_FAULT_NO_TCP_SOCK,	/* bpf_skc_to_tcp_sock returned NULL */
	SH_FAULT_NO_POLICY,	/* no trie installed */
	SH_FAULT_STORAGE,	/* no memory for the record */
	SH_FAULT_CB_FLAGS,	/* callback flags refused */
	SH_FAULT_COUNTERS,	/* no counters for that policy */
	SH_FAULT_EVENT_LOST,	/* ring buffer full */
	SH_FAULT_SET_KEEPALIVE, /* options refused, in enum sh_option order */
	SH_FAULT_SET_KEEPIDLE,
	SH_FAULT_SET_KEEPINTVL,
	SH_FAULT_SET_KEEPCNT,
	SH_FAULT_SET_USER_TIMEOUT,
	SH_FAULT_SET_RTO_MAX,
	SH_FAULT_MAX,
};

enum sh_event_type {
	SH_EVENT_CLOSE = 1, /* by a bound, a reset, a destroy or an error */
	SH_EVENT_STALL = 2, /* first retransmission timeout */
};

struct sh_event {
	__u64 time_ns;
	__u64 cookie;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u64 cgroup; /* id, 0: not known */
	__u32 netns;  /* inode */
	__u32 policy;
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u16 err;   /* errno the application sees, 0: none */
	__u8 type;   /* enum sh_event_type */
	__u8 cause;  /* enum sh_cause */
	__u8 family; /* the socket's own */
	__u8 direction;
	__u8 retransmits;
	__u8 probes_out;
	__u32 spare;
};

/* What a look-up asks. */
struct sh_tuple {
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 pad;
};

enum sh_look_flags {
	SH_LOOK_TSTAMP = 1 << 0,
	SH_LOOK_TSTAMP_USEC = 1 << 1,
	SH_LOOK_MPTCP = 1 << 2,
	SH_LOOK_MD5_OR_AO = 1 << 3,
	SH_LOOK_REPAIR = 1 << 4,
	SH_LOOK_DEV_DOWN = 1 << 5,
	SH_LOOK_RECORD = 1 << 6,
	SH_LOOK_ORPHAN = 1 << 7,  /* no process has it open any more */
	SH_LOOK_LOCKED = 1 << 8,  /* a process holds its lock */
	SH_LOOK_BACKLOG = 1 << 9, /* segments wait for that process */
	SH_LOOK_KERNEL = 1 << 10, /* the kernel uses it itself */
	SH_LOOK_IPSEC = 1 << 11,  /* its namespace has IPsec policies for what leaves */
	SH_LOOK_UNSENT = 1 << 12, /* no payload was ever sent on it */
};

/* One look at one socket (conn.Snapshot in Go). */
struct sh_look {
	__u64 taken_ns;
	__u64 cookie;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u64 cgroup; /* id, 0: not known */
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 netns;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_wnd;
	__u32 rcv_wnd;
	__u32 data_age_ms;
	__u32 packet_age_ms;
	__u32 send_age_ms;
	__u32 data_stamp; /* jiffies of the last payload */
	__u32 ack_stamp;  /* jiffies of the last acknowledgement */
	__u32 srtt_us;
	__u32 ts_offset;
	__u32 ts_recent;
	__u32 mark;
	__u32 txhash;
	__u32 dst_dev;
	__u32 bound_dev;
	__u32 uid;
	__u32 flags;	  /* enum sh_look_flags */
	__u32 flow_label; /* of IPv6, set for the socket; 0: the kernel chooses by txhash */
	__u32 src_dev;	  /* ifindex that its packets last came in by, 0: not known */
	__u8 state;
	__u8 family;
	__u8 tos;
	__u8 rcv_wscale;
	__u8 retransmits;
	__u8 probes_out;
	/* Until the timer of retransmissions and window probes, at least 1; 0: it is not set. */
	__u16 timer_ms;
	struct sh_options options; /* as set on the socket now */
	struct sh_record record;   /* valid with SH_LOOK_RECORD */
};

#endif

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The zero-window guard. A peer that reads nothing keeps its window shut and answers
 * every probe, and still TCP_USER_TIMEOUT ends its connection (kernel-facts L1). A
 * pass lengthens the user timeout of such connections, finitely, as long as probes
 * are answered, and gives it back when they are not, or the window opens. One pass
 * looks for namespaces with any (sh_survey, which takes no lock), or with room that a
 * judgement left to keepalives and nobody needs any more (room.h); the other sees to
 * them (sh_guard). Linux 5.15 and later (bpf_setsockopt in TCP iterators).
 */
#include "guard.h"
#include "room.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MAX_TIMEOUT_MS 0x7fffffffU
/* How many probes are closer together than the pace: from 200 ms on each takes twice as long. */
#define QUICK_PROBES 4

/*
 * What is set before the program is loaded. ceiling_ms is how long a connection at
 * least lives from a pass on if none comes any more. Where TCP_RTO_MAX_MS is there the
 * kernel's probes are kept from becoming rare, else the ceiling alone does that: the
 * last of them comes with it.
 */
const volatile __u32 ceiling_ms = 60000;
const volatile bool caps_rto = false;

/* The time between two passes, which the agent sets anew. */
__u32 interval_ms = 1000;
/* The shortest probe window of the policy in force, which the agent sets anew; 0: none. */
__u32 window_ms;
/* The programs come off: applications have back what they asked for, from now on. */
bool restores;
/* What sh_survey found: the shortest user timeout in force; the agent zeroes it. */
__u32 shortest_ms;
/* Connections that need a look in namespaces that found no room below; likewise. */
__u32 unnoted;

/* And the namespaces in which a connection needs a look, by inode. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32); /* how many do */
} sh_shut SEC(".maps");

enum sh_guard_step {
	SH_GUARD_RAISED = 1, /* the user timeout is the guard's now */
	SH_GUARD_KEPT,	     /* and was before */
	SH_GUARD_SILENT,     /* probes stay unanswered: its bound runs */
	SH_GUARD_ENDED,	     /* the window is open, or the user timeout is back */
};

/* A connection that is, or was, guarded. */
struct sh_guarded {
	__u64 cookie;
	__u32 netns;
	__u32 policy;
	__u32 user_timeout_ms; /* set on the socket now */
	__u8 step;	       /* enum sh_guard_step */
	__u8 pad[3];
};

const struct sh_guarded *const unused_guarded __attribute__((unused));
const enum sh_guard_step *const unused_step __attribute__((unused));

/* What a pass sees of a socket. */
struct sh_window {
	__u32 elapsed_ms; /* since when the kernel counts the user timeout */
	__u32 age_ms;	  /* of the last packet from the peer */
	__u8 persists;	  /* it probes a shut window now */
	__u8 shrunk;	  /* the same by retransmissions: the peer took the window back */
	__u8 pad[2];
};

/* Retransmissions count in milliseconds, or in microseconds where the socket says so. */
static __always_inline __u32 since_retransmit(const struct tcp_sock *tp)
{
	__u64 us = bpf_ktime_get_ns() / 1000;

	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		return ((__u32)us - tp->retrans_stamp) / 1000;
	return (__u32)(us / 1000) - tp->retrans_stamp;
}

static __always_inline void look_window(const struct tcp_sock *tp, struct sh_window *w)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	__u32 data = icsk->icsk_ack.lrcvtime, ack = tp->rcv_tstamp;
	__u32 since, now = bpf_jiffies64();

	w->age_ms = ticks_to_ms(now - data < now - ack ? now - data : now - ack);
	w->shrunk = tp->packets_out && !tp->snd_wnd && tp->retrans_stamp;
	if (icsk->icsk_probes_tstamp) {
		w->persists = icsk->icsk_pending == ICSK_TIME_PROBE0;
		w->elapsed_ms = ticks_to_ms(now - icsk->icsk_probes_tstamp);
	}
	if (w->shrunk) {
		since = since_retransmit(tp);
		w->elapsed_ms = since > w->elapsed_ms ? since : w->elapsed_ms;
	}
}

static __always_inline __u32 ceiling(const struct sh_record *rec)
{
	__u32 least = rec->effective.user_timeout_ms;

	least = least < MAX_TIMEOUT_MS / 2 ? 2 * least : MAX_TIMEOUT_MS;
	return ceiling_ms > least ? ceiling_ms : least;
}

/* The least that TCP_RTO_MAX_MS takes, and whole ticks. */
static __always_inline __u32 pace(__u32 ms)
{
	return ms < 1000 ? 1000 : ms - ms % 100;
}

/*
 * The time between two of the kernel's probes of a shut window, at most, so that what
 * becomes of them shows before the user timeout has passed. Where they are
 * retransmissions the kernel gives up after two of them without an answer: two fill
 * the user timeout then (kernel-facts L10).
 */
static __always_inline __u32 patience_ms(const struct sh_record *rec, const struct sh_window *w)
{
	return pace(rec->effective.user_timeout_ms / (w->shrunk ? 2 : 3));
}

/*
 * And so that a judgement sees one that had its time to be answered: twice in a probe
 * window. But the kernel also gives up after tcp_retries2 of them without an answer,
 * the first few of which come in quick succession: not before the user timeout.
 */
static __always_inline __u32 pace_ms(const struct tcp_sock *tp, const struct sh_record *rec,
				     const struct sh_window *w)
{
	__u32 most = patience_ms(rec, w), tries, least, ms = window_ms / 2;

	if (w->shrunk || !ms)
		return most;
	tries = tp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net->ipv4.sysctl_tcp_retries2;
	tries = tries > QUICK_PROBES ? tries - QUICK_PROBES : 1;
	least = (rec->effective.user_timeout_ms + interval_ms) / tries + 99;
	ms = pace(ms > least ? ms : least);
	return ms < most ? ms : most;
}

/*
 * Whether the peer leaves unanswered what it would answer. Where the kernel's probes
 * are paced nothing comes for a quarter longer than they may take to the next one; else
 * two are unanswered, as the answer to one may be under way. (Those that are
 * retransmissions, into a window that was taken back, the kernel does not count.)
 */
static __always_inline bool is_silent(const struct tcp_sock *tp, const struct sh_record *rec,
				      const struct sh_window *w)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;

	if (!w->persists && !w->shrunk)
		return (icsk->icsk_probes_out >= 2 || icsk->icsk_retransmits >= 2) &&
		       w->age_ms >= rec->effective.user_timeout_ms / 3;
	if (caps_rto && !is_orphan(tp))
		return (w->shrunk || icsk->icsk_probes_out) &&
		       w->age_ms >= patience_ms(rec, w) * 5 / 4;
	return w->shrunk ? w->age_ms >= ceiling(rec) : icsk->icsk_probes_out >= 2;
}

/* Sets the user timeout; false: the kernel refuses. */
static __always_inline bool set_timeout(struct tcp_sock *tp, __u32 ms)
{
	int value = ms;

	if (!bpf_setsockopt(tp, SOL_TCP, TCP_USER_TIMEOUT, &value, sizeof(value)))
		return true;
	fault(SH_FAULT_SET_USER_TIMEOUT);
	return false;
}

/*
 * The guard's user timeout, noted before it is set: who finds it knows whose it is. So
 * is the one before, which a call of the application may be about to set.
 */
static __always_inline void raise(struct tcp_sock *tp, struct sh_record *rec, __u64 ms)
{
	__u32 was = rec->guard_ms, before = rec->guard_was_ms;

	if (ms > MAX_TIMEOUT_MS)
		ms = MAX_TIMEOUT_MS;
	rec->guard_was_ms = was;
	rec->guard_ms = ms;
	if (set_timeout(tp, ms)) {
		rec->flags |= SH_GUARDED;
		return;
	}
	rec->guard_ms = was;
	rec->guard_was_ms = before;
}

/* Puts back what is meant to be set. */
static __always_inline void let_go(struct tcp_sock *tp, struct sh_record *rec)
{
	if (is_guards(rec, tp->inet_conn.icsk_user_timeout) &&
	    !set_timeout(tp, rec->effective.user_timeout_ms))
		return;
	rec->flags &= ~SH_GUARDED;
}

/*
 * Keeps the kernel's probes of a shut window from becoming rare, or no longer does. What
 * the application set meanwhile is its own.
 */
static __always_inline void pace_probes(struct tcp_sock *tp, struct sh_record *rec,
					const struct sh_window *w)
{
	__u32 is = sock_rto_max_ms(tp), ms = pace_ms(tp, rec, w), without = is;
	__u32 limit = rec->effective.rto_max * 100;

	if (!caps_rto || is_orphan(tp)) /* sh_closing */
		return;
	if (rec->pace && is == rec->pace * 100)
		without = limit ? limit : rec->rto_was_ms;
	if ((w->persists || w->shrunk) && rec->flags & SH_GUARDED && ms < without) {
		rec->pace = ms / 100;
		if (!limit)
			rec->rto_was_ms = without;
	} else {
		ms = without;
		if (rec->pace && !limit)
			rec->rto_was_ms = 0;
		rec->pace = 0;
	}
	if (ms != is)
		set_opt(tp, SOL_TCP, TCP_RTO_MAX_MS, ms, SH_FAULT_SET_RTO_MAX);
}

/*
 * The bound of a peer that no longer answers: user timeout and one interval after the
 * last packet from it, and never so soon that the next pass would not see an answer
 * that is under way. It only comes nearer: the next pass does not put it off.
 */
static __always_inline void run_out(struct tcp_sock *tp, struct sh_record *rec,
				    const struct sh_window *w)
{
	__u32 limit = rec->effective.user_timeout_ms + interval_ms;
	__u32 left = limit > w->age_ms ? limit - w->age_ms : 0;
	__u64 next;

	if (left < interval_ms * 3 / 2)
		left = interval_ms * 3 / 2;
	next = (__u64)w->elapsed_ms + left;
	if (next < tp->inet_conn.icsk_user_timeout)
		raise(tp, rec, next);
}

/* The application's own user timeout, which ends nothing at once: from now on. */
static __always_inline void give_back(struct tcp_sock *tp, struct sh_record *rec,
				      const struct sh_window *w)
{
	__u64 own = rec->app.user_timeout_ms;

	if (own)
		own += w->elapsed_ms;
	if (own > MAX_TIMEOUT_MS)
		own = MAX_TIMEOUT_MS;
	if (!set_timeout(tp, own))
		return;
	rec->app.user_timeout_ms = own;
	rec->effective.user_timeout_ms = own;
	rec->flags &= ~SH_GUARDED;
	rec->guard_ms = 0;
	rec->guard_was_ms = 0;
}

/* Takes the room away that keepalives of a judgement needed, once the peer is heard. */
static __always_inline void take_room(struct tcp_sock *tp, struct sh_record *rec)
{
	if (!has_spare_room(tp, rec))
		return;
	if (tp->keepalive_probes == rec->room)
		set_opt(tp, SOL_TCP, TCP_KEEPCNT, rec->effective.count, SH_FAULT_SET_KEEPCNT);
	rec->room = 0;
}

/* Sees to one connection; returns what became of it, 0: it needs nothing. */
static __always_inline __u8 guard(struct tcp_sock *tp, struct sh_record *rec)
{
	bool guarded = is_guards(rec, tp->inet_conn.icsk_user_timeout);
	__u32 is = tp->inet_conn.icsk_user_timeout;
	struct sh_window w = {};
	struct sh_counters *c;

	if (!is_shut(tp) || !rec->effective.user_timeout_ms) {
		if (!guarded && !(rec->flags & SH_GUARDED) && !rec->pace)
			return 0;
		let_go(tp, rec);
		pace_probes(tp, rec, &w);
		return guarded ? SH_GUARD_ENDED : 0;
	}
	if (!guarded && is != rec->effective.user_timeout_ms)
		return 0; /* somebody else set it just now: adoption looks whose wish it is */
	rec->guard_s = bpf_ktime_get_ns() / 1000000000;
	look_window(tp, &w);
	if (restores) {
		give_back(tp, rec, &w);
		w = (struct sh_window){};
		pace_probes(tp, rec, &w);
		return SH_GUARD_ENDED;
	}
	if (!is_silent(tp, rec, &w)) {
		raise(tp, rec, (__u64)w.elapsed_ms + ceiling(rec));
		pace_probes(tp, rec, &w);
		if (guarded)
			return SH_GUARD_KEPT;
		c = bpf_map_lookup_elem(&sh_stats, &rec->policy);
		if (c)
			COUNT(c->guarded, 1);
		return SH_GUARD_RAISED;
	}
	if (!guarded)
		return 0;
	if (w.persists || w.shrunk)
		run_out(tp, rec, &w);
	else
		let_go(tp, rec); /* what bounds any connection does so here */
	pace_probes(tp, rec, &w);
	return SH_GUARD_SILENT;
}

/* Writes one struct sh_guarded a connection that is, or was, guarded. */
SEC("iter/tcp") int sh_guard(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct sh_guarded row = {};
	struct sh_record *rec;
	struct tcp_sock *tp;

	if (!skc || !carries_connection(skc->skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec || rec->flags & SH_CONNECTING)
		return 0;
	take_room(tp, rec);
	row.step = guard(tp, rec);
	if (!row.step)
		return 0;
	row.cookie = skc->skc_cookie.counter;
	row.netns = skc->skc_net.net->ns.inum;
	row.policy = rec->policy;
	row.user_timeout_ms = tp->inet_conn.icsk_user_timeout;
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
	return 0;
}

/*
 * Notes the namespaces in which sh_guard has something to do, and the shortest user
 * timeout. It goes over the records of all namespaces and takes no socket's lock.
 */
SEC("iter/bpf_sk_storage_map") int sh_survey(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sh_record *rec = ctx->value;
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp;
	bool room;
	__u32 netns, *have, one = 1, ms;

	if (!sk || !rec)
		return 0;
	ms = rec->effective.user_timeout_ms;
	if (rec->flags & SH_CONNECTING)
		return 0;
	if (ms && (!shortest_ms || ms < shortest_ms))
		shortest_ms = ms;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	room = has_spare_room(tp, rec) && carries_connection(sk->__sk_common.skc_state);
	if (!room && !(ms && is_shut(tp)) && !(rec->flags & SH_GUARDED) && !rec->pace &&
	    !is_guards(rec, tp->inet_conn.icsk_user_timeout))
		return 0;
	netns = sk->__sk_common.skc_net.net->ns.inum;
	have = bpf_map_lookup_elem(&sh_shut, &netns);
	if (have)
		*have += 1;
	else if (bpf_map_update_elem(&sh_shut, &netns, &one, BPF_ANY))
		unnoted++;
	return 0;
}

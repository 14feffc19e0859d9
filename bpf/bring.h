/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Bringing a connection that lives to other options without ending it. */
#ifndef SOCKHEALTH_BRING_H
#define SOCKHEALTH_BRING_H

#include "hold.h"
#include "adopt.h"
#include "guard.h"

/*
 * The kernel sees a healthy connection as one to end if a user timeout comes on
 * it while the last packet from the peer is older (T15): the first keepalive that
 * is lost ends it then. So the keepalive comes first, and the user timeout once a
 * packet from the peer is younger than idle and nothing of ours is unanswered.
 */

/* What to set, in this order. */
enum sh_set {
	SH_SET_NO_TIMEOUT = 1 << 0, /* for as long as a keepalive may be lost */
	SH_SET_LOOSER = 1 << 1,	    /* a longer user timeout, at once */
	SH_SET_OFF = 1 << 2,
	SH_SET_INTERVAL = 1 << 3,
	SH_SET_COUNT = 1 << 4,
	SH_SET_ON = 1 << 5,
	SH_SET_IDLE = 1 << 6, /* a keepalive leaves at once where one is due */
	SH_SET_TIMEOUT = 1 << 7,
	SH_SET_RTO_MAX = 1 << 8,
};

/* What decides. */
struct sh_facts {
	__u32 age;	 /* of the last packet from the peer, in ticks */
	__u32 sets;	 /* enum sh_set: the decision */
	__u8 unanswered; /* enum sh_wait, apart from silence */
	__u8 in_flight;
	__u8 probes_out;
	__u8 shrunk; /* the peer took its window back with data under way */
};

static __always_inline void gather(const struct tcp_sock *tp, struct sh_facts *f)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	__u32 data = icsk->icsk_ack.lrcvtime, ack = tp->rcv_tstamp;
	__u32 now = bpf_jiffies64(), stuck;
	__u32 in_flight = ~if_equal(tp->write_seq, tp->snd_una);
	__u32 shut = if_equal(tp->snd_wnd, 0);

	f->age = sh_min(now - data, now - ack);
	f->in_flight = in_flight & 1;
	f->probes_out = icsk->icsk_probes_out;
	f->shrunk = if_any(tp->packets_out) & shut & 1;
	stuck = if_any(icsk->icsk_retransmits | icsk->icsk_probes_out);
	/* A peer that takes no more, and answers every probe, would be ended (L1). */
	shut = if_any(icsk->icsk_probes_tstamp) | if_equal(icsk->icsk_pending, ICSK_TIME_PROBE0) |
	       (in_flight & shut);
	f->unanswered = choose_if(shut, SH_WAIT_WINDOW, stuck & SH_WAIT_STUCK);
}

/* Takes one keepalive from the budget. */
static __always_inline bool take(struct sh_pass *pass)
{
	if (pass->budget) {
		pass->budget--;
		return true;
	}
	pass->put_off++;
	return false;
}

static __always_inline bool same_keepalive(const struct sh_options *a, const struct sh_options *b)
{
	return !((a->idle_s ^ b->idle_s) | (a->interval_s ^ b->interval_s) | (a->count ^ b->count) |
		 (a->keepalive ^ b->keepalive));
}

static __always_inline bool same_options(const struct sh_options *a, const struct sh_options *b)
{
	return same_keepalive(a, b) &
	       !((a->user_timeout_ms ^ b->user_timeout_ms) | (a->rto_max ^ b->rto_max));
}

/* The first phase: keepalive. Returns what it waits for. */
static __always_inline __u8 plan_keepalive(struct sh_pass *pass, struct sh_facts *f,
					   const struct sh_options *now,
					   const struct sh_options *want)
{
	bool on = want->keepalive && !now->keepalive, sends;

	if (same_keepalive(now, want))
		return SH_WAIT_NONE;
	/* Fewer keepalives, while some are unanswered, could be none. */
	if (want->keepalive && now->keepalive && f->probes_out)
		return f->unanswered;
	/* With data in flight none leaves, and none ends anything (T4). */
	sends = want->keepalive && !f->in_flight && f->age >= want->idle_s * hz &&
		(on || want->idle_s != now->idle_s);
	if (sends && !take(pass))
		return SH_WAIT_BUDGET;
	/* One that the application set beside no keepalive, or beside a longer one. */
	if (sends && now->user_timeout_ms)
		f->sets |= SH_SET_NO_TIMEOUT;
	if (!want->keepalive && now->keepalive)
		f->sets |= SH_SET_OFF;
	if (want->interval_s != now->interval_s)
		f->sets |= SH_SET_INTERVAL;
	if (want->count != now->count)
		f->sets |= SH_SET_COUNT;
	if (on)
		f->sets |= SH_SET_ON;
	if (on || want->idle_s != now->idle_s)
		f->sets |= SH_SET_IDLE;
	return sends ? SH_WAIT_PACKET : SH_WAIT_NONE;
}

/* What to set now, of what is wanted (f->sets); returns what the rest waits for. */
__noinline int plan(struct sh_pass *pass, struct sh_facts *f, struct sh_options *now,
		    struct sh_options *want)
{
	bool spent;
	__u8 wait;

	if (!pass || !f || !now || !want)
		return SH_WAIT_ERROR;
	if (want->rto_max != now->rto_max) {
		/* It counts what has been retransmitted before, too. */
		if (want->rto_max && (f->unanswered == SH_WAIT_STUCK || f->shrunk))
			return f->unanswered;
		f->sets |= SH_SET_RTO_MAX;
		now->rto_max = want->rto_max;
	}
	/* Without one the kernel heeds the count: what a judgement provoked may be more. */
	spent = !want->user_timeout_ms && f->probes_out && f->probes_out >= now->count;
	if (sh_sooner(now->user_timeout_ms, want->user_timeout_ms) && !spent) {
		f->sets |= SH_SET_LOOSER;
		now->user_timeout_ms = want->user_timeout_ms;
	}
	wait = plan_keepalive(pass, f, now, want);
	/* The second phase. */
	if (wait || now->user_timeout_ms == want->user_timeout_ms)
		return wait == SH_WAIT_PACKET && !want->user_timeout_ms ? SH_WAIT_NONE : wait;
	if (f->unanswered)
		return f->unanswered;
	if (want->keepalive && f->age >= want->idle_s * hz)
		return SH_WAIT_PACKET;
	f->sets |= SH_SET_TIMEOUT;
	return SH_WAIT_NONE;
}

/* Brings what is set now nearer to what is wanted; returns what the rest waits for. */
static __always_inline int bring(struct tcp_sock *tp, struct sh_pass *pass, struct sh_record *rec,
				 struct sh_options *now, struct sh_options *want)
{
	struct sh_facts f = {};
	int wait;

	gather(tp, &f);
	wait = plan(pass, &f, now, want);
	if (f.sets & SH_SET_RTO_MAX &&
	    (!want->rto_max || want->rto_max * 100 < sock_rto_max_ms(tp)))
		set_rto_max(tp, rec, want->rto_max * 100);
	if (f.sets & SH_SET_LOOSER)
		set_opt(tp, SOL_TCP, TCP_USER_TIMEOUT, want->user_timeout_ms,
			SH_FAULT_SET_USER_TIMEOUT);
	if (f.sets & SH_SET_NO_TIMEOUT)
		set_opt(tp, SOL_TCP, TCP_USER_TIMEOUT, 0, SH_FAULT_SET_USER_TIMEOUT);
	if (f.sets & SH_SET_OFF)
		set_opt(tp, SOL_SOCKET, SO_KEEPALIVE, 0, SH_FAULT_SET_KEEPALIVE);
	if (f.sets & SH_SET_INTERVAL)
		set_opt(tp, SOL_TCP, TCP_KEEPINTVL, want->interval_s, SH_FAULT_SET_KEEPINTVL);
	if (f.sets & SH_SET_COUNT)
		set_opt(tp, SOL_TCP, TCP_KEEPCNT, want->count, SH_FAULT_SET_KEEPCNT);
	if (f.sets & SH_SET_ON)
		set_opt(tp, SOL_SOCKET, SO_KEEPALIVE, 1, SH_FAULT_SET_KEEPALIVE);
	if (f.sets & SH_SET_IDLE)
		set_opt(tp, SOL_TCP, TCP_KEEPIDLE, want->idle_s, SH_FAULT_SET_KEEPIDLE);
	if (f.sets & SH_SET_TIMEOUT)
		set_opt(tp, SOL_TCP, TCP_USER_TIMEOUT, want->user_timeout_ms,
			SH_FAULT_SET_USER_TIMEOUT);
	return wait;
}

#endif

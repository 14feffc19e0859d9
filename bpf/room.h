/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What keepalives that were provoked may cost: nothing. */
#ifndef SOCKHEALTH_ROOM_H
#define SOCKHEALTH_ROOM_H

#include "options.h"
#include "sock.h"

/*
 * To the kernel a keepalive that was provoked is one more that stayed unanswered, in
 * icsk_probes_out. Without a user timeout it ends the connection once there are
 * TCP_KEEPCNT of them, when the next one is due; so that number is raised by what was
 * provoked, and the kernel's own end comes when it would have come. With a user timeout
 * it ends the connection when one is due after that time and any is unanswered
 * (kernel-facts T18).
 */

/* The most that TCP_KEEPCNT takes. */
#define SH_MOST_PROBES 127

/* How long nothing came from the peer, in ticks, as keepalive_time_elapsed() has it. */
static __always_inline __u32 silent_for(const struct tcp_sock *tp)
{
	__u32 data = tp->inet_conn.icsk_ack.lrcvtime, ack = tp->rcv_tstamp;
	__u32 now = bpf_jiffies64();

	return sh_min(now - data, now - ack);
}

/*
 * How many keepalives are due before the bound (idle time and count times interval after
 * the last packet), where TCP_KEEPIDLE is set to idle_s now.
 */
static __always_inline __u32 probes_left(const struct sh_options *o, __u32 age, __u32 idle_s)
{
	__u32 step = o->interval_s * hz, bound = o->idle_s * hz + step * o->count;
	__u32 next = sh_max(age, idle_s * hz);

	return bound > next ? (bound - next + step - 1) / step : 0;
}

/*
 * Whether the kernel's own end stays where it is if a keepalive is provoked now and gets
 * lost. Not so where a connection that lives may be silent for as long as its user
 * timeout: the next keepalive, whenever it comes, would not ask but end it.
 */
static __always_inline bool may_provoke(const struct tcp_sock *tp, const struct sh_record *rec)
{
	__u32 ms = tp->inet_conn.icsk_user_timeout, meant = rec->effective.user_timeout_ms;
	const struct sh_options *o = &rec->effective;
	__u32 out = tp->inet_conn.icsk_probes_out, age = silent_for(tp);

	if (!o->idle_s || !o->interval_s || !o->count)
		return false; /* adoption has not set them yet */
	if (!ms)
		return !out || out + 1 + probes_left(o, age, o->idle_s) <= SH_MOST_PROBES;
	if (meant) /* the guard's is longer, and ends */
		ms = sh_min(ms, meant);
	return ms >= (o->idle_s + o->interval_s) * 1000 && (!out || ticks_to_ms(age) < ms);
}

/* The TCP_KEEPCNT that goes with an idle time; provokes: at least one more is sent. */
static __always_inline __u32 room_for(const struct tcp_sock *tp, const struct sh_record *rec,
				      __u32 idle_s, bool provokes)
{
	const struct sh_options *o = &rec->effective;
	__u32 left = probes_left(o, silent_for(tp), idle_s);

	if (tp->inet_conn.icsk_user_timeout)
		return o->count;
	if (!left && provokes)
		left = 1;
	left = sh_min(tp->inet_conn.icsk_probes_out + left, SH_MOST_PROBES);
	return sh_max(left, o->count);
}

/* Whether there is room to take away: the peer was heard, and no judgement goes on. */
static __always_inline bool has_spare_room(const struct tcp_sock *tp, const struct sh_record *rec)
{
	return rec->room && !tp->inet_conn.icsk_probes_out && !(rec->flags & SH_PROVOKED);
}

/*
 * What the prober has set is no wish of the application's: in o stands what is meant
 * instead, which is the record's.
 */
static __always_inline void without_prober(const struct sh_record *rec, struct sh_options *o)
{
	__u32 idle = if_any(rec->flags & SH_PROVOKED) & if_equal(o->idle_s, SH_PROVOKED_S);
	__u32 count = if_any(rec->room) & if_equal(o->count, rec->room);

	o->idle_s = choose_if(idle, rec->effective.idle_s, o->idle_s);
	o->count = choose_if(count, rec->effective.count, o->count);
}

#endif

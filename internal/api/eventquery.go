// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// EventQuery says which events to stream. The zero value is all that are kept.
type EventQuery struct {
	// Follow goes on with new ones.
	Follow bool
	// Since leaves out those up to this number.
	Since uint64
	// Policy, Kind and Verdict are words that must be equal, "" for any.
	Policy, Kind, Verdict string
	// Peer holds the remote address; not valid: any.
	Peer netip.Prefix
	// Netns is the inode of the namespace, 0 for any.
	Netns uint32
}

// eventParameters are the names in a query.
func eventParameters() []string {
	return []string{"follow", "since", "policy", "kind", "verdict", "peer", "netns"}
}

// query returns it as the query of a request.
func (q *EventQuery) query() string {
	v := make(url.Values)
	set := func(name, value string, given bool) {
		if given {
			v.Set(name, value)
		}
	}
	set("follow", "1", q.Follow)
	set("since", strconv.FormatUint(q.Since, 10), q.Since != 0)
	set("policy", q.Policy, q.Policy != "")
	set("kind", q.Kind, q.Kind != "")
	set("verdict", q.Verdict, q.Verdict != "")
	set("peer", q.Peer.String(), q.Peer.IsValid())
	set("netns", strconv.FormatUint(uint64(q.Netns), 10), q.Netns != 0)
	return v.Encode()
}

// matches reports whether an entry is asked for.
func (q *EventQuery) matches(e *agent.Entry) bool {
	return (q.Policy == "" || q.Policy == e.Policy) &&
		(q.Kind == "" || q.Kind == string(e.Kind)) &&
		(q.Verdict == "" || e.Result != nil && q.Verdict == string(e.Result.Verdict)) &&
		(!q.Peer.IsValid() || q.Peer.Contains(e.ID.Remote.Addr())) &&
		(q.Netns == 0 || q.Netns == e.ID.Netns)
}

// eventsOf reads the query, or answers where it is at fault.
func eventsOf(w http.ResponseWriter, r *http.Request) (EventQuery, bool) {
	values, ok := query(w, r, eventParameters()...)
	if !ok {
		return EventQuery{}, false
	}
	q := EventQuery{Policy: values.Get("policy"), Kind: values.Get("kind"), Verdict: values.Get("verdict")}
	bad := func(name, want string) (EventQuery, bool) {
		refuse(w, http.StatusBadRequest, "query parameter %q is %s, want %s", name, quote(values.Get(name)), want)
		return EventQuery{}, false
	}
	var err error
	if values.Has("follow") {
		if q.Follow, err = strconv.ParseBool(values.Get("follow")); err != nil {
			return bad("follow", "1 or 0")
		}
	}
	if values.Has("since") {
		if q.Since, err = strconv.ParseUint(values.Get("since"), 10, 64); err != nil {
			return bad("since", "the number of an event")
		}
	}
	if kinds := eventKinds(); values.Has("kind") && !slices.Contains(kinds, q.Kind) {
		return bad("kind", "one of "+strings.Join(kinds, ", "))
	}
	if words := verdictWords(); values.Has("verdict") && !slices.Contains(words, q.Verdict) {
		return bad("verdict", "one of "+strings.Join(words, ", "))
	}
	if values.Has("peer") {
		if q.Peer, err = ParsePeer(values.Get("peer")); err != nil {
			return bad("peer", "an IP address or a prefix such as 10.20.0.0/16")
		}
	}
	if values.Has("netns") {
		if q.Netns, err = parseNetns(`query parameter "netns"`, values.Get("netns")); err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return EventQuery{}, false
		}
	}
	return q, true
}

// ParsePeer reads the filter by peer: an address, or a prefix.
func ParsePeer(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		if mapped := p.Addr().Is4In6() && p.Bits() >= 96; mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Masked(), nil
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}

func eventKinds() []string {
	return []string{string(agent.EntryVerdict), string(agent.EntryEnd), string(agent.EntryStall)}
}

func verdictWords() []string {
	words := make([]string, 0, len(verdict.Words()))
	for _, w := range verdict.Words() {
		words = append(words, string(w))
	}
	return words
}

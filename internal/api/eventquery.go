// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// EventQuery says which events to stream. The zero value is all that are kept.
type EventQuery struct {
	// Follow goes on with new ones.
	Follow bool
	// Since leaves out those up to this number, From those before this moment, and
	// Last those that are older than that; the zero value leaves out none. At most
	// one is given.
	Since uint64
	From  time.Time
	Last  time.Duration
	// Policy, Kind, Verdict, Action and Reporter are words that must be equal, ""
	// for any.
	Policy, Kind, Verdict, Action, Reporter string
	// Pod is the UID of a pod; Container the id of a container, or how it begins.
	Pod, Container string
	// Cookie is that of the socket, 0 for any.
	Cookie uint64
	// Peer holds the remote address; not valid: any.
	Peer netip.Prefix
	// Netns is the inode of the namespace, 0 for any.
	Netns uint32
}

// eventParameters are the names in a query.
func eventParameters() []string {
	return []string{
		"follow", "since", "policy", "kind", "verdict", "action", "reporter", "peer", "netns", "cookie", "pod", "container",
	}
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
	set("since", q.since(), q.Since != 0 || q.Last != 0 || !q.From.IsZero())
	set("policy", q.Policy, q.Policy != "")
	set("kind", q.Kind, q.Kind != "")
	set("verdict", q.Verdict, q.Verdict != "")
	set("action", q.Action, q.Action != "")
	set("reporter", q.Reporter, q.Reporter != "")
	set("cookie", strconv.FormatUint(q.Cookie, 10), q.Cookie != 0)
	set("pod", q.Pod, q.Pod != "")
	set("container", q.Container, q.Container != "")
	set("peer", q.Peer.String(), q.Peer.IsValid())
	set("netns", strconv.FormatUint(uint64(q.Netns), 10), q.Netns != 0)
	return v.Encode()
}

// matches reports whether an entry is asked for.
func (q *EventQuery) matches(e *agent.Entry) bool {
	return (q.Policy == "" || q.Policy == e.Policy) &&
		(q.Kind == "" || q.Kind == string(e.Kind)) &&
		(q.Verdict == "" || e.Result != nil && q.Verdict == string(e.Result.Verdict)) &&
		(q.Action == "" || e.Result != nil && q.Action == string(e.Result.Action)) &&
		(q.Reporter == "" || q.Reporter == e.Reporter) &&
		(q.Cookie == 0 || q.Cookie == e.ID.Cookie) &&
		(q.Pod == "" || q.Pod == e.Container.Pod) &&
		strings.HasPrefix(e.Container.Container, q.Container) &&
		(!q.Peer.IsValid() || q.Peer.Contains(e.ID.Remote.Addr())) &&
		(q.Netns == 0 || q.Netns == e.ID.Netns)
}

// eventsOf reads the query, or answers where it is at fault.
func eventsOf(w http.ResponseWriter, r *http.Request) (EventQuery, bool) {
	values, ok := query(w, r, eventParameters()...)
	if !ok {
		return EventQuery{}, false
	}
	q := EventQuery{
		Policy: values.Get("policy"), Kind: values.Get("kind"), Verdict: values.Get("verdict"), Action: values.Get("action"),
		Reporter: values.Get("reporter"), Pod: values.Get("pod"), Container: values.Get("container"),
	}
	bad := func(name, want string) (EventQuery, bool) {
		refuse(w, http.StatusBadRequest, "query parameter %q is %s, want %s", name, quote(values.Get(name)), want)
		return EventQuery{}, false
	}
	for _, word := range []struct {
		name string
		of   []string
	}{{"kind", EventKinds()}, {"verdict", VerdictWords()}, {"action", ActionWords()}, {"reporter", ReporterWords()}} {
		if values.Has(word.name) && !slices.Contains(word.of, values.Get(word.name)) {
			return bad(word.name, "one of "+strings.Join(word.of, ", "))
		}
	}
	var err error
	if values.Has("follow") {
		if q.Follow, err = strconv.ParseBool(values.Get("follow")); err != nil {
			return bad("follow", "1 or 0")
		}
	}
	if values.Has("since") {
		if err := q.ParseSince(values.Get("since")); err != nil {
			return bad("since", sinceWanted)
		}
	}
	if values.Has("peer") {
		if q.Peer, err = ParsePeer(values.Get("peer")); err != nil {
			return bad("peer", "an IP address or a prefix such as 10.20.0.0/16")
		}
	}
	if values.Has("cookie") {
		if q.Cookie, err = strconv.ParseUint(values.Get("cookie"), 10, 64); err != nil || q.Cookie == 0 {
			return bad("cookie", "a socket's SO_COOKIE")
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

// sinceWanted is what since takes.
const sinceWanted = "the number of an event, a time such as 2006-01-02T15:04:05Z, or how long ago such as 10m"

// ParseSince reads what to leave out: up to the event of a number (Since), what is
// before a moment (From), or older than a time (Last).
func (q *EventQuery) ParseSince(s string) (err error) {
	q.Since, q.From, q.Last = 0, time.Time{}, 0
	if q.Since, err = strconv.ParseUint(s, 10, 64); err == nil {
		return nil
	}
	if q.Last, err = time.ParseDuration(s); err == nil && q.Last > 0 {
		return nil
	}
	q.Last = 0
	if q.From, err = time.Parse(time.RFC3339, s); err == nil {
		return nil
	}
	return fmt.Errorf("%q: want %s", s, sinceWanted)
}

// since is what ParseSince reads.
func (q *EventQuery) since() string {
	switch {
	case q.Last != 0:
		return q.Last.String()
	case !q.From.IsZero():
		return q.From.Format(time.RFC3339Nano)
	}
	return strconv.FormatUint(q.Since, 10)
}

// from is the moment before which events are left out; zero: none. That of Last is
// on the monotonic clock: no jump of the wall clock moves it.
func (q *EventQuery) from(now time.Time) time.Time {
	if q.Last != 0 {
		return now.Add(-q.Last)
	}
	return q.From
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

// The closed lists of words that events are asked for by.

// EventKinds lists the kinds of events.
func EventKinds() []string { return words(agent.EntryKinds()) }

// VerdictWords lists the verdicts.
func VerdictWords() []string { return words(verdict.Words()) }

// ActionWords lists what can be done about one.
func ActionWords() []string { return words(agent.Actions()) }

// ReporterWords lists who can ask for one.
func ReporterWords() []string { return agent.Reporters() }

func words[T ~string](of []T) []string {
	out := make([]string, 0, len(of))
	for _, w := range of {
		out = append(out, string(w))
	}
	return out
}

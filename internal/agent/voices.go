// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

const (
	// maxVoices bounds the peers that are kept of a walk. Of more it is a sample.
	maxVoices = 100
	// maxOwn bounds the addresses of this node that are kept of one.
	maxOwn = 10_000
)

// voice is a peer's address, and when it was heard last over a managed connection.
type voice struct {
	hash  uint64
	heard time.Duration // CLOCK_MONOTONIC
	// ask is a socket to ask it on, of those that can be judged the one on which it was heard last;
	// its cookie is 0 where there is none. ns is where that is.
	ask conn.Snapshot
	ns  *netns.NS
}

// voices gathers the peers of walks. Where there are more than maxVoices it keeps those
// with the lowest hashes, which are any.
type voices struct {
	seed  maphash.Seed
	force *loader.InForce
	since time.Duration // whoever was not heard since is left out
	of    map[netip.Addr]*voice
	limit uint64              // there were more: hashes from here on are too high; 0: there were not
	own   map[netip.Addr]bool // addresses of this node
}

func newVoices(seed maphash.Seed, force *loader.InForce, since time.Duration) *voices {
	return &voices{seed: seed, force: force, since: since, of: make(map[netip.Addr]*voice), own: make(map[netip.Addr]bool)}
}

// add takes one socket of a walk.
func (v *voices) add(ns *netns.NS, s *conn.Snapshot) {
	if len(v.own) < maxOwn {
		v.own[s.Local.Addr()] = true
	}
	heard, peer := s.Taken-s.PacketAge, s.Remote.Addr()
	if heard < v.since || peer.IsLoopback() || !s.State.Judgeable() || !s.HasRecord || v.force.Peer(s.Record.Policy) == nil {
		return
	}
	one := v.voice(peer)
	if one == nil {
		return
	}
	one.heard = max(one.heard, heard)
	if (one.ask.Cookie == 0 || heard > one.ask.Taken-one.ask.PacketAge) && askable(s) {
		one.ask, one.ns = *s, ns
	}
}

// askable reports whether nothing but a probe tells how it stands with a socket.
func askable(s *conn.Snapshot) bool {
	return s.Cookie != 0 && !s.Orphan &&
		verdict.Decide(verdict.Input{Sent: s.Taken, Before: verdict.Look{Found: true, Snapshot: *s}}).Word == ""
}

// voice returns what is kept of a peer, nil where nothing is to be.
func (v *voices) voice(peer netip.Addr) *voice {
	if one := v.of[peer]; one != nil {
		return one
	}
	one := &voice{hash: maphash.Comparable(v.seed, peer)}
	if v.limit != 0 && one.hash >= v.limit {
		return nil
	}
	v.of[peer] = one
	if len(v.of) <= maxVoices {
		return one
	}
	var highest netip.Addr
	for other, have := range v.of {
		if h := v.of[highest]; h == nil || have.hash > h.hash {
			highest = other
		}
	}
	v.limit = v.of[highest].hash
	delete(v.of, highest)
	if highest == peer {
		return nil
	}
	return one
}

// merge adds what a walk over another namespace has gathered.
func (v *voices) merge(other *voices) {
	maps.Copy(v.own, other.own)
	for peer, more := range other.of {
		one := v.voice(peer)
		if one == nil {
			continue
		}
		one.heard = max(one.heard, more.heard)
		if more.ask.Cookie != 0 && (one.ask.Cookie == 0 || more.ask.Taken-more.ask.PacketAge > one.ask.Taken-one.ask.PacketAge) {
			one.ask, one.ns = more.ask, more.ns
		}
	}
}

// others are the peers that are not this node itself: who is, is heard whatever has
// become of its links.
func (v *voices) others() []*voice {
	var list []*voice
	for peer, one := range v.of {
		if !v.own[peer] {
			list = append(list, one)
		}
	}
	return list
}

// moments are when they were heard.
func moments(list []*voice) []time.Duration {
	out := make([]time.Duration, len(list))
	for i, one := range list {
		out[i] = one.heard
	}
	return out
}

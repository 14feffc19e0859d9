// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/sockhealth/sockhealth/internal/netns"
	"golang.org/x/sys/unix"
)

// ruleset is the nftables of one namespace, the router's but for local faults:
// counters see every packet before faults do.
type ruleset struct {
	mu       sync.Mutex // guards the fields below, and the order of requests
	conn     *nftables.Conn
	table    *nftables.Table
	counters *nftables.Chain
	faults   *nftables.Chain
	last     uint64 // id of the last rule made
	closed   bool   // the library would connect anew, to whatever has the descriptor's number now
}

func newRuleset(ns *netns.NS, hook *nftables.ChainHook) (*ruleset, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(ns.FD()))
	if err != nil {
		return nil, err
	}
	s := &ruleset{conn: conn}
	s.table = conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "lab"})
	s.counters = s.chain("counters", hook, -1)
	s.faults = s.chain("faults", hook, 0)
	if err := conn.Flush(); err != nil {
		return nil, errors.Join(err, conn.CloseLasting())
	}
	return s, nil
}

func (s *ruleset) chain(name string, hook *nftables.ChainHook, priority int32) *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return s.conn.AddChain(&nftables.Chain{
		Table: s.table, Name: name, Policy: &accept,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  hook,
		Priority: nftables.ChainPriorityRef(nftables.ChainPriority(priority)),
	})
}

func (s *ruleset) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.conn.CloseLasting()
}

// add makes a rule of m that counts and then does what the verdict says.
func (s *ruleset) add(chain *nftables.Chain, m Match, verdict ...expr.Any) (rule, error) {
	if err := m.check(); err != nil {
		return rule{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return rule{}, fmt.Errorf("add rule to router: %w", os.ErrClosed)
	}
	s.last++
	r := rule{set: s, chain: chain, id: s.last}
	for _, one := range m.directions() {
		exprs := append(one.exprs(), &expr.Counter{})
		s.conn.AddRule(&nftables.Rule{
			Table: s.table, Chain: chain,
			Exprs:    append(exprs, verdict...),
			UserData: binary.BigEndian.AppendUint64(nil, r.id),
		})
	}
	if err := s.conn.Flush(); err != nil {
		return rule{}, fmt.Errorf("add rule to router: %w", err)
	}
	return r, nil
}

// rule is what stands in the kernel for one Match: one nftables rule for each
// direction, with the id in their user data.
type rule struct {
	set   *ruleset
	chain *nftables.Chain
	id    uint64
}

// find returns the kernel's rules; the caller holds the set's lock.
func (r rule) find() ([]*nftables.Rule, error) {
	if r.set.closed {
		return nil, fmt.Errorf("read router's rules: %w", os.ErrClosed)
	}
	all, err := r.set.conn.GetRules(r.set.table, r.chain)
	if err != nil {
		return nil, fmt.Errorf("read router's rules: %w", err)
	}
	var own []*nftables.Rule
	for _, one := range all {
		if len(one.UserData) == 8 && binary.BigEndian.Uint64(one.UserData) == r.id {
			own = append(own, one)
		}
	}
	return own, nil
}

// packets returns how many packets the rule matched so far.
func (r rule) packets() (uint64, error) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	own, err := r.find()
	if err != nil {
		return 0, err
	}
	if len(own) == 0 {
		return 0, fmt.Errorf("read router's rule %d: %w", r.id, unix.ENOENT)
	}
	var n uint64
	for _, one := range own {
		for _, e := range one.Exprs {
			if c, ok := e.(*expr.Counter); ok {
				n += c.Packets
			}
		}
	}
	return n, nil
}

// remove takes the rule out; a second call finds nothing and is no error.
func (r rule) remove() error {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	own, err := r.find()
	if err != nil {
		return err
	}
	for _, one := range own {
		one.Table, one.Chain = r.set.table, r.chain
		if err := r.set.conn.DelRule(one); err != nil {
			return fmt.Errorf("remove router's rule %d: %w", r.id, err)
		}
	}
	if err := r.set.conn.Flush(); err != nil {
		return fmt.Errorf("remove router's rule %d: %w", r.id, err)
	}
	return nil
}

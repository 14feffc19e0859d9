// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// Counters are one policy's, summed over the CPUs, since the programs were
// loaded.
type Counters struct {
	OpenedOutbound, OpenedInbound uint64
	Closed                        [causes]uint64 // by Cause
	BytesReceived, BytesAcked     uint64         // of closed connections
	Stalls                        uint64
	// What applications asked for later: kept as asked, held at the bound,
	// let through by app_override: allow; Raised counts results whose user
	// timeout had to be raised.
	OverrideKept, OverrideHeld, OverrideAllowed, OverrideRaised uint64
	// Connections that came under the policy while open, in a pass of adoption,
	// and that left it while open; and whose options a pass found changed.
	Adopted, Released, Drifted uint64
	ConnectsBounded            uint64 // connect() calls that the policy's bound ended
	Guarded                    uint64 // times that a peer without window was guarded
}

// Open returns the connections that are open now.
func (c Counters) Open() uint64 {
	n := c.OpenedOutbound + c.OpenedInbound + c.Adopted
	n -= min(n, c.Released) // the CPUs' counters are not read at one moment
	for _, closed := range c.Closed {
		n -= min(n, closed)
	}
	return n
}

// Counters returns the counters of every policy in force, by name.
func (p *Programs) Counters() (map[string]Counters, error) {
	force := p.inForce.Load()
	if force == nil {
		return nil, nil
	}
	out := make(map[string]Counters, len(force.peers))
	for id, i := range force.peers {
		var perCPU []sockopsShCounters
		name := force.Policy.Peers[i].Name
		if err := p.sockops.ShStats.Lookup(id, &perCPU); err != nil {
			return nil, fmt.Errorf("read counters of policy %q: %w", name, err)
		}
		var sum Counters
		for _, c := range perCPU {
			sum.add(&c)
		}
		out[name] = sum
	}
	return out, nil
}

func (c *Counters) add(one *sockopsShCounters) {
	c.OpenedOutbound += one.Opened[0]
	c.OpenedInbound += one.Opened[1]
	for i, n := range one.Closed {
		c.Closed[i] += n
	}
	c.BytesReceived += one.BytesReceived
	c.BytesAcked += one.BytesAcked
	c.Stalls += one.Stalls
	c.OverrideKept += one.OverrideKept
	c.OverrideHeld += one.OverrideHeld
	c.OverrideAllowed += one.OverrideAllowed
	c.OverrideRaised += one.OverrideRaised
	c.Adopted += one.Adopted
	c.Released += one.Released
	c.Drifted += one.Drifted
	c.ConnectsBounded += one.ConnectsBounded
	c.Guarded += one.Guarded
}

// Fault is a thing that can go wrong inside a program.
type Fault uint8

// FaultEventLost counts events that found the ring full.
const FaultEventLost = Fault(sockopsShFaultSH_FAULT_EVENT_LOST)

// faultNames are the reasons as metrics spell them, by enum sh_fault.
var faultNames = [...]string{
	sockopsShFaultSH_FAULT_NO_SOCK:          "no_socket",
	sockopsShFaultSH_FAULT_NO_TCP_SOCK:      "no_tcp_socket",
	sockopsShFaultSH_FAULT_NO_POLICY:        "no_policy",
	sockopsShFaultSH_FAULT_STORAGE:          "no_storage",
	sockopsShFaultSH_FAULT_CB_FLAGS:         "callback_flags",
	sockopsShFaultSH_FAULT_COUNTERS:         "no_counters",
	sockopsShFaultSH_FAULT_EVENT_LOST:       "event_lost",
	sockopsShFaultSH_FAULT_SET_KEEPALIVE:    "set_so_keepalive",
	sockopsShFaultSH_FAULT_SET_KEEPIDLE:     "set_tcp_keepidle",
	sockopsShFaultSH_FAULT_SET_KEEPINTVL:    "set_tcp_keepintvl",
	sockopsShFaultSH_FAULT_SET_KEEPCNT:      "set_tcp_keepcnt",
	sockopsShFaultSH_FAULT_SET_USER_TIMEOUT: "set_tcp_user_timeout",
	sockopsShFaultSH_FAULT_SET_RTO_MAX:      "set_tcp_rto_max_ms",
}

// String returns the fault as metrics spell it.
func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("fault_%d", uint8(f))
}

// Option returns the name of the socket option that the kernel refused, in
// lower case, or "" where the fault is another one.
func (f Fault) Option() string {
	if f < Fault(sockopsShFaultSH_FAULT_SET_KEEPALIVE) || int(f) >= len(faultNames) {
		return ""
	}
	return faultNames[f][len("set_"):]
}

// Faults returns how often each fault happened since the programs were loaded,
// indexed by Fault.
func (p *Programs) Faults() ([]uint64, error) {
	out := make([]uint64, len(faultNames))
	for i := range out {
		var perCPU []uint64
		if err := p.sockops.ShFaults.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read counter of fault %s: %w", Fault(i), err)
		}
		for _, n := range perCPU {
			out[i] += n
		}
	}
	return out, nil
}

// FaultsBefore returns how many of them, by Fault, were counted before this start:
// those of the agents that it took over from.
func (p *Programs) FaultsBefore() []uint64 {
	if p.before == nil {
		return make([]uint64, len(faultNames))
	}
	return slices.Clone(p.before)
}

// newCounters gives a policy its slot of counters, all 0.
func (p *Programs) newCounters(id uint32) error { return p.zeroCounters(id, ebpf.UpdateAny) }

// seeToCounters gives a policy a slot where it has none.
func (p *Programs) seeToCounters(id uint32) error {
	if err := p.zeroCounters(id, ebpf.UpdateNoExist); !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	return nil
}

func (p *Programs) zeroCounters(id uint32, flags ebpf.MapUpdateFlags) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the CPUs: %w", err)
	}
	return p.sockops.ShStats.Update(id, make([]sockopsShCounters, cpus), flags)
}

// dropCounters frees slots; a slot that is gone already is no error.
func (p *Programs) dropCounters(ids []uint32) error {
	var errs []error
	for _, id := range ids {
		if err := p.sockops.ShStats.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("free counters of policy id %d: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

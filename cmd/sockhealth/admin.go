// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/doctor"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// admin answers the admin socket out of a running service.
type admin struct{ *service }

// Status implements api.Admin.
func (a *admin) Status(context.Context) (api.Status, error) {
	counters, err := a.programs.Counters()
	if err != nil {
		return api.Status{}, err
	}
	faults, err := a.programs.Faults()
	if err != nil {
		return api.Status{}, err
	}
	attached, err := a.programs.Attached()
	if err != nil {
		return api.Status{}, err
	}
	stats := a.agent.Stats()
	out := api.Status{
		Version: thisBuild().Version, PID: os.Getpid(), Started: a.started, Kernel: release(),
		Cgroup: a.cgroup, Programs: attached, Netns: a.names(),
		Policy: a.file(),
		Faults: make(map[string]uint64), FaultsBefore: make(map[string]uint64),
		Judgements: stats.Judgements, Deferred: stats.Deferred,
	}
	if !stats.Frozen.IsZero() {
		since := stats.Frozen.Truncate(time.Millisecond)
		out.FrozenSince, out.FrozenReason = &since, string(stats.FrozenWhy)
	}
	before := a.programs.FaultsBefore()
	for i, n := range faults {
		f, n := loader.Fault(i), n-min(n, before[i])
		if before[i] > 0 {
			out.FaultsBefore[f.String()] = before[i]
		}
		if f == loader.FaultEventLost {
			out.EventsDropped = n
		} else if n > 0 {
			out.Faults[f.String()] = n
		}
	}
	force := a.programs.InForce().Policy
	adoption := a.Adoption()
	guarded := a.Guarded()
	report, canary := a.Coverage()
	out.Coverage = checked(&report, &canary)
	for i := range force.Peers {
		name := force.Peers[i].Name
		p := peerStatus(name, counters[name], &stats)
		p.Pending, p.Guarded = adoption[name].Pending, guarded[name]
		countCoverage(&p, &report)
		out.Peers = append(out.Peers, p)
	}
	checks := a.examine()
	for i := range checks {
		out.Features = append(out.Features, feature(&checks[i]))
	}
	out.Problems = slices.Concat(
		a.problems(checks, &out), coverageProblems(&report, &canary), partProblems(a.Parts()), a.apiProblems())
	return out, nil
}

// examine asks of the agent what doctor asks of a machine.
func (a *admin) examine() []doctor.Check {
	running := doctor.Agent{Programs: a.programs, Cgroup: a.cgroup, Namespaces: func() error {
		_, release, err := a.covered()
		release()
		return err
	}}
	return running.Examine()
}

// frozenText says since when nothing is closed by judgement, why, and what to look at.
func frozenText(s *api.Status) string {
	why := agent.Freeze(s.FrozenReason)
	remedy := "look at its links, routes and firewall"
	if why == agent.FreezeUnseen {
		remedy = "the log says in which network namespaces: look for processes that are stuck in the kernel there"
	}
	return fmt.Sprintf("nothing is closed by judgement since %s: %s; the kernel's bounds go on [%s]",
		s.FrozenSince.Local().Format(time.RFC3339), why, remedy)
}

// problems says what does not work as it should.
func (a *admin) problems(checks []doctor.Check, s *api.Status) []string {
	var out []string
	for i := range checks {
		if fault := checks[i].Fault(); fault != "" {
			out = append(out, fault)
		}
	}
	if s.FrozenSince != nil {
		out = append(out, frozenText(s))
	}
	if lost := a.programs.Unpinned(); len(lost) > 0 {
		out = append(out, fmt.Sprintf("pins are missing (%s): without this agent connections may be unbounded [restart it]",
			strings.Join(lost, ", ")))
	}
	if text := uncapped(a.programs.InForce()); text != "" {
		out = append(out, text)
	}
	if len(s.Faults) > 0 {
		out = append(out, "steps failed inside the programs, so that connections may be unbounded or uncounted: see faults")
	}
	return out
}

// feature puts a check into the words of the API.
func feature(c *doctor.Check) api.Feature {
	return api.Feature{Name: c.Name, Status: string(c.Status), Detail: c.Detail, Lost: c.Lost, Remedy: c.Remedy}
}

// peerStatus makes the totals of one policy.
func peerStatus(name string, c loader.Counters, stats *agent.Stats) api.PolicyStatus {
	p := api.PolicyStatus{Name: name, Stale: make(map[string]uint64), Verdicts: make(map[string]uint64)}
	p.Opened = c.OpenedOutbound + c.OpenedInbound
	p.Adopted, p.Released, p.DriftRepaired, p.Guards = c.Adopted, c.Released, c.Drifted, c.Guarded
	for _, n := range c.Closed {
		p.Closed += n
	}
	p.Stale[loader.CauseIdle.String()] = c.Closed[loader.CauseIdle]
	p.Stale[loader.CauseInFlight.String()] = c.Closed[loader.CauseInFlight]
	for _, cause := range agent.Causes() {
		p.Stale[cause] = stats.Closes[agent.CloseKey{Policy: name, Cause: cause, Action: agent.ActionClosed}]
	}
	for k, n := range stats.Verdicts {
		if k.Policy == name {
			p.Verdicts[string(k.Verdict)] = n
		}
	}
	return p
}

// Sockets implements api.Admin.
func (a *admin) Sockets(ctx context.Context) ([]api.Socket, error) {
	spaces, release, unseen := a.covered()
	defer release()
	list, err := listAll(ctx, spaces, func(ns *netns.NS) ([]api.Socket, error) {
		var here []api.Socket // the walk's alone until it has ended
		ground := a.ground(ns)
		err := a.agent.List(ns, func(s *conn.Snapshot, peer *policy.Peer) { here = append(here, a.socket(s, peer, ground)) })
		if err != nil {
			return nil, err
		}
		return here, nil
	})
	return list, errors.Join(unseen, err)
}

// listAll joins the lists of namespaces. Where one cannot be listed the error says so, and
// the others still are. It is nil where none can.
func listAll(ctx context.Context, spaces []*netns.NS, list func(ns *netns.NS) ([]api.Socket, error)) (all []api.Socket, err error) {
	var missing []error
	for _, ns := range spaces {
		here, err := list(ns)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil && all == nil {
			all = []api.Socket{} // none, which is an answer
		}
		all, missing = append(all, here...), append(missing, err)
	}
	return all, errors.Join(missing...)
}

// socket puts a look into the words of the API; peer is nil where no policy is
// in force. What its options come to is reckoned by its namespace.
func (a *admin) socket(s *conn.Snapshot, peer *policy.Peer, ground policy.Ground) api.Socket {
	name, probe := "", policy.Probe{}
	if peer != nil {
		name, probe = peer.Name, peer.Probe
	}
	out := api.NewSocket(s, name, a.containerOf(s.Cgroup))
	if s.HasRecord {
		out.AgeMS = (s.Taken - s.Record.Opened).Milliseconds()
	}
	o := s.Options
	if s.Record.Guarded { // what holds once its peer stops answering
		o = s.Record.Effective
	}
	if bounds(&o) {
		f := (&policy.Peer{Options: o, Probe: probe}).FiguresOn(ground)
		out.IdleBoundMS, out.InFlightBoundMS = f.IdleBound.Milliseconds(), f.InFlightBound.Milliseconds()
	}
	return out
}

// bounds reports whether options end a connection whose peer is dead.
func bounds(o *conn.Options) bool {
	return (o.UserTimeout > 0 || o.RTOMax > 0) && o.KeepAlive && o.Idle > 0 && o.Interval > 0
}

// covered returns the namespaces that the agent acts in, as far as they are in sight:
// unseen says why some are missing, nil where none is. The caller calls release, whatever
// that is: it lets go of them.
func (a *admin) covered() (spaces []*netns.NS, release func(), unseen error) {
	spaces = a.spaces.All()
	return spaces, func() {
		for _, ns := range spaces {
			_ = ns.Close()
		}
	}, a.sight()
}

// Policies implements api.Admin.
func (a *admin) Policies() []string {
	var names []string
	peers := a.programs.InForce().Policy.Peers
	for i := range peers {
		names = append(names, peers[i].Name)
	}
	return names
}

// Policy implements api.Admin.
func (a *admin) Policy(context.Context) (api.Policy, error) {
	return api.Policy{PolicyFile: a.file(), Text: a.programs.InForce().Policy.Text}, nil
}

// Reload implements api.Admin.
func (a *admin) Reload(context.Context) (api.PolicyFile, error) {
	if err := a.reloader.Reload("admin"); err != nil {
		return api.PolicyFile{}, err
	}
	return a.file(), nil
}

// file tells of the policy in force and of the last read.
func (a *admin) file() api.PolicyFile {
	s := a.reloader.Status()
	f := api.PolicyFile{File: a.opts.policy, Revision: s.Revision, Loaded: s.Loaded.Truncate(time.Millisecond)}
	if s.Err != nil {
		f.Error = s.Err.Error()
	}
	return f
}

// release returns the running kernel's.
func release() string {
	_, name, err := kernel.Running()
	if err != nil {
		return fmt.Sprintf("unknown: %v", err)
	}
	return name
}

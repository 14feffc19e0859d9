// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// groundHere is what this machine's kernel and this process's network namespace give
// a policy. What cannot be told is taken for what it is by default.
func groundHere() policy.Ground {
	var g policy.Ground
	if running, _, err := kernel.Running(); err == nil {
		g.RTOCap = kernel.RTOCap.Expected(running)
	}
	g.Retries2, _ = kernel.Retries2() // 0 where it cannot be read
	return g
}

// ground is the same of the running agent, for a namespace.
func (a *admin) ground(ns *netns.NS) policy.Ground {
	g := policy.Ground{RTOCap: a.programs.Lacks(kernel.RTOCap) == nil}
	_ = ns.Do(func() (err error) {
		g.Retries2, err = kernel.Retries2() // 0 where it cannot be read
		return err
	})
	return g
}

// uncapped says that entries ask for what this kernel cannot give, "" where none does.
func uncapped(force *loader.InForce) string {
	names := force.Uncapped()
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("in_flight: rto_cap needs Linux %s, user_timeout bounds these entries instead: %s [write in_flight: auto, or run that kernel]",
		kernel.RTOCap.Since(), strings.Join(names, ", "))
}

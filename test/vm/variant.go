// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// variant is a machine that lacks something which a kernel of any age may lack,
// and the tests that run on it.
type variant struct {
	name    string
	kernels []string
	lacks   string   // for the tests: what they must not expect (labtest.Without)
	without []string // modules to take away
	append  string   // to the kernel's command line
	tests   map[string]string
}

// everyTest matches all.
const everyTest = "."

// variants are run beside the plain machine of their kernels.
var variants = []variant{
	{
		name: "no tcp_diag", kernels: []string{"newest"}, lacks: "inet_diag,destroy", without: []string{"tcp_diag"},
		tests: map[string]string{"internal/doctor": everyTest, "internal/sockets": everyTest, "internal/agent": "TestDeadPath|TestDeadAfterAck|TestSweep|TestNotTheirs|TestClosedOrBounded"},
	},
	{
		// Before Linux 6.5 nothing closes here, and the rest goes on.
		name: "no tcp_diag", kernels: []string{"5.10", "6.1"}, lacks: "inet_diag,destroy", without: []string{"tcp_diag"},
		tests: map[string]string{
			"internal/doctor": everyTest, "internal/agent": "TestClosedOrBounded",
			"internal/loader": "TestIdleBound|TestInFlightBound|TestOptionsOnBothEnds",
		},
	},
	{
		name: "no IPv6", kernels: []string{"newest"}, lacks: "ipv6", append: "ipv6.disable=1",
		tests: map[string]string{
			"internal/doctor": everyTest, "internal/sockets": everyTest,
			"internal/loader": "TestOptionsOnBothEnds|TestIdleBound|TestInFlightBound|TestAdopt$|TestConnectBound|TestDestroyByWalk|TestExcept|TestRules|TestTampering",
			"internal/prober": "TestIdle|TestConnection|TestNoRoute", "internal/agent": "TestDeadPath|TestDeadAfterAck|TestSweep|TestNotTheirs",
		},
	},
}

// vary returns the jobs of a kernel's variants.
func vary(in *installed, binaries []binary, args []string) ([]*job, error) {
	var jobs []*job
	for _, v := range variants {
		if !slices.Contains(v.kernels, in.name) {
			continue
		}
		j := &job{
			kernel: in, name: v.name, env: []string{"SOCKHEALTH_TEST_WITHOUT=" + lacking(in.arch) + "," + v.lacks}, without: v.without, append: v.append, tests: len(v.tests), whole: true,
		}
		for pkg, tests := range v.tests {
			i := slices.IndexFunc(binaries, func(b binary) bool { return b.pkg == pkg })
			if i < 0 {
				return nil, fmt.Errorf("plan %q: no tests of %s", v.name, pkg)
			}
			j.runs = append(j.runs, binaries[i].with(append(slices.Clone(args), "-test.run", tests)...))
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

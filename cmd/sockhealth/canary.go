// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/coverage"
)

// newCanary is the process that opens the canary connection.
func newCanary(e *env) *cobra.Command {
	return &cobra.Command{
		Use: coverage.CanaryCommand, Hidden: true,
		Short:   "Open the canary connection",
		Long:    "Open the canary connection. The agent starts this process; it is of no use by itself.",
		Example: "  sudo sockhealth run",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			return coverage.CanaryProcess(e.stdin, e.stdout)
		},
	}
}

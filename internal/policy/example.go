// SPDX-License-Identifier: Apache-2.0

package policy

import _ "embed" // the example below

//go:embed example.yaml
var example string

// Example returns a policy file that parses in this version and shows every
// key with its default.
func Example() string { return example }

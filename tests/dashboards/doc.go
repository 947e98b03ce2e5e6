// Package dashboards knows the metrics that the common rules and dashboards read
// of a cluster (names.txt), for the tests of what serves them.
package dashboards

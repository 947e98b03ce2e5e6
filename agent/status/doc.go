// Package status is the only writer of pod.status: Of computes it from what is
// known, Manager sends what changed at once and keeps the newest while the API is
// away.
package status

// Package disruption keeps the status of PodDisruptionBudgets: how many of the
// pods that a budget guards are healthy and how many may be evicted now.
package disruption

// Package batch declares the API group batch/v1: Job.
package batch

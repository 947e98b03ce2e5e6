// Package pod runs pods: Decide says what to do next from the desired pod, its
// record and what the runtime shows; a worker a pod carries it out and records
// it. Containers are known again by labels in the runtime, so that an agent
// that was killed goes on with what runs.
package pod

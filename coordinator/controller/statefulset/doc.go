// Package statefulset gives each of a set's pods a number that stays: its name,
// host name and claims (STS-5..40). Pods come and go one after another, or all
// at once; updates roll from the highest number down to the partition.
// ControllerRevisions keep the templates.
package statefulset

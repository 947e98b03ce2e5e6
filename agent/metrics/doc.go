// Package metrics counts what the agent does, and writes numbers in the text
// format that Prometheus reads. Nothing is collected before it is asked for; a
// counter costs the words that it is made of.
package metrics

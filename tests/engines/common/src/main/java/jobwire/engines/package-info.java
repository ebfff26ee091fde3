/**
 * What the engines for tests share. The names of the environment are in {@link
 * jobwire.engines.Settings}, the requests in {@link jobwire.engines.Requests}, and what the
 * processes do in {@link jobwire.engines.Work}.
 */
package jobwire.engines;

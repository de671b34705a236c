import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { LockService } from './lock.service';

/** A request, one line of JSON. Times are in milliseconds. */
interface Request {
  id: number;
  op: string;
  name: string;
  ttl?: number;
  token?: string;
  ms?: number;
}

type Operation = (locks: LockService, request: Request) => unknown;

const TTL = 30_000;

const operations: Record<string, Operation> = {
  /** The token of a lock that was taken, to be unlocked. */
  lock: (locks, { name, ttl = TTL }) => locks.acquire(name, ttl),
  /** Whether the key still held the token and was deleted. */
  unlock: (locks, { name, token = '' }) => locks.release(name, token),
  /** A section that lasts as long as asked. */
  hold: (locks, { name, ttl = TTL, ms = 0 }) => locks.withLock(name, ttl, () => pause(ms)),
  /** A section in which the whole process stands still, as in a long collection of garbage. */
  pause: (locks, { name, ttl = TTL, ms = 0 }) => locks.withLock(name, ttl, async () => standStill(ms)),
  /** The end, with no chance to clean up. */
  die: () => process.kill(process.pid, 'SIGKILL'),
};

function standStill(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

export function say(line: object): void {
  process.stdout.write(JSON.stringify(line) + '\n');
}

/** converse answers the requests on stdin, each when it is done, until there is no more input. */
export async function converse(locks: LockService): Promise<void> {
  for await (const line of createInterface({ input: process.stdin })) {
    void answer(locks, JSON.parse(line) as Request).then(say);
  }
}

async function answer(locks: LockService, request: Request): Promise<object> {
  const began = process.hrtime.bigint();
  const took = () => Number(process.hrtime.bigint() - began);
  try {
    const operation = operations[request.op];
    if (operation === undefined) throw new Error(`no operation ${request.op}`);
    const value = await operation(locks, request);
    return { id: request.id, ok: true, value, nanos: took() };
  } catch (error) {
    const { name, message } = error as Error;
    return { id: request.id, ok: false, error: name, message, nanos: took() };
  }
}

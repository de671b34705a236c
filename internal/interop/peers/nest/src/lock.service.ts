import { randomUUID } from 'node:crypto';
import { ConflictException, Inject, Injectable } from '@nestjs/common';
import { Redis } from 'ioredis';

const COMPARE_AND_DELETE = `
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
`;

/** LockService locks by the plain recipe: SET NX PX with a token of one's own. */
@Injectable()
export class LockService {
  constructor(@Inject(Redis) private readonly redis: Redis) {}

  /** withLock runs job under the lock; a busy lock is a ConflictException, and job does not run. */
  async withLock<T>(key: string, ttlMs: number, job: () => Promise<T>): Promise<T> {
    const token = await this.acquire(key, ttlMs);
    try {
      return await job();
    } finally {
      await this.release(key, token);
    }
  }

  /** acquire takes the lock for ttlMs and returns the token that releases it. */
  async acquire(key: string, ttlMs: number): Promise<string> {
    const token = randomUUID();
    if ((await this.redis.set(key, token, 'PX', ttlMs, 'NX')) !== 'OK') {
      throw new ConflictException(`${key} is locked`);
    }
    return token;
  }

  /** release deletes the key if it still holds token, and says whether it did. */
  async release(key: string, token: string): Promise<boolean> {
    return (await this.redis.eval(COMPARE_AND_DELETE, 1, key, token)) === 1;
  }
}
